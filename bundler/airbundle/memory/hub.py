"""A model on the Hugging Face hub: its configuration and tensor headers, without its weights."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import requests
from huggingface_hub import HfApi, get_token, hf_hub_url
from huggingface_hub.errors import (
    HfHubHTTPError,
    HFValidationError,
    NotASafetensorsRepoError,
    OfflineModeIsEnabled,
    SafetensorsParsingError,
)

from airbundle import web
from airbundle.memory.weights import Tensor
from airbundle_onsite.contract.record import record
from airbundle_onsite.errors import FetchError

_SECONDS = 60


@record
class RemoteModel:
    """What was read.

    Attributes:
        config: its config.json.
        tensors: from the headers of its safetensors files; empty when it has none.
    """

    config: Mapping[str, Any]
    tensors: tuple[Tensor, ...]


def read_remote(repository: str, revision: str, endpoint: str, session: web.Session) -> RemoteModel:
    """Read it: the configuration whole, of the weights only the headers (ranged reads).

    Args:
        repository: ``ORG/NAME``.
        revision: branch, tag or commit; empty for the main branch.
        endpoint: of the hub.
        session: for the configuration.

    Raises:
        FetchError: with the repository and the reason.
    """
    token = get_token()
    headers = {"Authorization": f"Bearer {token}"} if token else {}
    try:
        url = hf_hub_url(repository, "config.json", revision=revision or None, endpoint=endpoint)
        answer = session.get(url, headers=headers, timeout=_SECONDS)
        answer.raise_for_status()
        config = answer.json()
        found = HfApi(endpoint=endpoint, token=token or False).get_safetensors_metadata(
            repository, revision=revision or None
        )
    except NotASafetensorsRepoError:
        return RemoteModel(config, ())
    except requests.HTTPError as error:
        raise _failure(repository, f"config.json: HTTP {error.response.status_code}") from error
    except requests.RequestException as error:
        raise _failure(repository, web.reason(error)) from error
    except (HfHubHTTPError, HFValidationError, OfflineModeIsEnabled, SafetensorsParsingError, ValueError) as error:
        raise _failure(repository, web.scrubbed(str(error).splitlines()[0])) from error
    tensors = tuple(
        Tensor(name, info.data_offsets[1] - info.data_offsets[0], dtype=info.dtype)
        for file in found.files_metadata.values()
        for name, info in file.tensors.items()
    )
    return RemoteModel(config, tensors)


def _failure(repository: str, why: str) -> FetchError:
    return FetchError(
        f"hf:{repository}: {why}",
        remedy="check the name, HF_ENDPOINT and HF_TOKEN; or name a directory with its config.json",
    )
