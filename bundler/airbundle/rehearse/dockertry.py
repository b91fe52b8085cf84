"""The docker runtime where this machine cannot start the engine: load the images, try the engine without a network."""

from __future__ import annotations

import os
import tarfile
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import docker
import docker.errors
import requests

from airbundle.rehearse import payload
from airbundle.rehearse.notebook import Recorder
from airbundle.rehearse.report import Step
from airbundle.rehearse.site import Place
from airbundle.rehearse.tries import install_argv, run_tries
from airbundle_onsite.contract import layout
from airbundle_onsite.contract.checks import Status
from airbundle_onsite.contract.launch import LaunchPlan
from airbundle_onsite.contract.manifest import BundleManifest
from airbundle_onsite.system import Completed

# Where the installer mounts things in a container, too.
_MODEL, _MODELS, _CONFIG, _SITE, _STATE, _WHEELS = (
    f"/airbundle/{name}" for name in ("model", "models", "config", "site", "state", "wheels")
)
_INSTALL_SECONDS = 3600
_TAIL = 30


def try_without_start(
    place: Place, manifest: BundleManifest, client: docker.APIClient, recorder: Recorder, labels: Mapping[str, str]
) -> None:
    """Load the images as the site would, and run the first plan's tries; what cannot be done is said."""
    plan = next((plan for plan in manifest.launch if plan.runtime == "docker"), None)
    if plan is None or manifest.needs.profile.arch != os.uname().machine:
        recorder.left_out(f"the engine itself: it is built for {manifest.needs.profile.arch}")
        return
    if not any(entry.path == f"{layout.IMAGES}/manifest.json" for entry in manifest.files):
        recorder.left_out("loading the images: this bundle has no archive of them that docker reads by itself")
        return
    recorder.left_out("what the engine asks the network for: it is tried in a container that has none")
    tried = _Tried(place, manifest, plan, client, labels)
    if tried.load(recorder) and tried.install(recorder):
        run_tries(plan, tried.values(), tried.execute, recorder)


class _Tried:
    def __init__(
        self,
        place: Place,
        manifest: BundleManifest,
        plan: LaunchPlan,
        client: docker.APIClient,
        labels: Mapping[str, str],
    ) -> None:
        self._place, self._manifest, self._plan = place, manifest, plan
        self._client, self._labels = client, labels
        self._directory = place.scratch / "release"

    def load(self, recorder: Recorder) -> bool:
        """Stream the images into the engine, and write out the small files."""
        recorder.begin("images", "load the images")
        began = time.monotonic()
        try:
            archive = image_archive(self._place.bundle, self._manifest)
            for _ in self._client.load_image(archive):  # type: ignore[no-untyped-call]
                pass
            said = ""
        except (docker.errors.APIError, requests.exceptions.RequestException) as error:
            said = str(error)
        payload.extract(self._place.bundle, self._manifest, self._directory, frozenset({"wheel", "config"}))
        for name in ("site", "state", "model", layout.CONFIG):
            path = self._directory / name
            path.mkdir(exist_ok=True)
            path.chmod(0o777)
        names = ", ".join(image.name for image in self._manifest.images)
        seconds = round(time.monotonic() - began, 3)
        recorder.done(
            Step("images", "fail" if said else "pass", said or f"{names} loaded", seconds, exit_code=1 if said else 0)
        )
        return not said

    def install(self, recorder: Recorder) -> bool:
        """Install the wheels inside the image, when the plan has any."""
        pip = next((wheel.path for wheel in self._manifest.wheels if wheel.name == "pip"), None)
        if not self._plan.wheels or pip is None:
            return True
        recorder.begin("wheels", "install the wheels in the image without a network")
        began = time.monotonic()
        argv = install_argv("python3", f"{_WHEELS}/{Path(pip).name}", _WHEELS, _SITE)
        done = self.execute(argv, {"HOME": "/tmp"}, _INSTALL_SECONDS)
        evidence = tuple((done.stdout + done.stderr).splitlines()[-_TAIL:]) if done.code else ()
        count = f"{len(self._manifest.wheels)} wheels"
        summary = f"{count} installed by the bundled pip" if not done.code else f"pip failed on {count}"
        seconds = round(time.monotonic() - began, 3)
        status: Status = "fail" if done.code else "pass"
        recorder.done(Step("wheels", status, summary, seconds, exit_code=done.code, evidence=evidence))
        return not done.code

    def values(self) -> dict[str, str]:
        """For the plan's placeholders."""
        return {
            "python": "python3",
            "site": _SITE,
            "model": _MODEL,
            "models": _MODELS,
            "config": _CONFIG,
            "state": _STATE,
            "host": "0.0.0.0",
            "port": str(self._plan.port),
            "served_name": self._plan.model,
            "threads": str(os.cpu_count() or 1),
        }

    def execute(self, argv: Sequence[str], variables: Mapping[str, str], seconds: int) -> Completed:
        """Run a command in a container of the plan's image, with no network at all."""
        body = self._body(argv, variables)
        created = self._client.create_container_from_config(body)  # type: ignore[no-untyped-call]
        try:
            self._client.start(created["Id"])
            try:
                code = int(self._client.wait(created["Id"], timeout=seconds)["StatusCode"])
            except requests.exceptions.RequestException:
                code = 124
            output = self._client.logs(created["Id"], tail=200).decode("utf-8", "replace")
        except docker.errors.APIError as error:
            return Completed(tuple(argv), 126, "", str(error.explanation or error))
        finally:
            self._client.remove_container(created["Id"], v=True, force=True)
        return Completed(tuple(argv), code, output, "")

    def _body(self, argv: Sequence[str], variables: Mapping[str, str]) -> dict[str, Any]:
        environment = dict(variables)
        if self._plan.wheels:
            environment["PYTHONPATH"] = _SITE
        mounts = {_CONFIG: layout.CONFIG, _SITE: "site", _STATE: "state", _MODEL: "model", _WHEELS: layout.WHEELS}
        writable = (_SITE, _STATE)
        return {
            "Image": self._plan.image,
            "Entrypoint": list(argv[:1]),
            "Cmd": list(argv[1:]),
            "Env": [f"{name}={value}" for name, value in sorted(environment.items())],
            "Labels": dict(self._labels),
            "Healthcheck": {"Test": ["NONE"]},
            "HostConfig": {
                "NetworkMode": "none",
                "CapDrop": ["ALL"],
                "CapAdd": ["DAC_OVERRIDE"],
                "SecurityOpt": ["no-new-privileges"],
                "Mounts": [
                    {
                        "Type": "bind",
                        "Source": str(self._directory / source),
                        "Target": target,
                        "ReadOnly": target not in writable,
                    }
                    for target, source in mounts.items()
                    if (self._directory / source).is_dir()
                ],
            },
        }


def image_archive(bundle: Path, manifest: BundleManifest) -> Iterator[bytes]:
    """The bundle's images/ as an archive that docker loads, streamed."""
    prefix = f"{layout.IMAGES}/"
    for entry in manifest.files:
        if not entry.path.startswith(prefix):
            continue
        info = tarfile.TarInfo(entry.path.removeprefix(prefix))
        info.size, info.mode = entry.size, 0o644
        yield info.tobuf(tarfile.GNU_FORMAT)
        yield from payload.chunks(bundle, manifest, entry)
        yield bytes(-entry.size % tarfile.BLOCKSIZE)
    yield bytes(2 * tarfile.BLOCKSIZE)
