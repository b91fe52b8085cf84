"""Image layers that a bundle leaves out, since the container engine has them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from airbundle_onsite.contract.artifacts import ImageEntry
from airbundle_onsite.contract.checks import CheckResult
from airbundle_onsite.contract.manifest import BundleManifest

CHECK = "docker.layers"
_CURE = "carry a bundle that was built with --base-skip images, or without --base"


def thin_images(manifest: BundleManifest) -> list[ImageEntry]:
    """Images of which layers were left out."""
    absent = manifest.absent_layers
    return [image for image in manifest.images if any(layer.digest in absent for layer in image.layers)]


def cannot_complete(manifest: BundleManifest, engine: str) -> CheckResult:
    """The result for a container engine that takes only whole images."""
    names = ", ".join(image.name for image in thin_images(manifest))
    return CheckResult(
        CHECK,
        "fail",
        f"{engine} takes only whole images, and {names} came without the layers of {_titles(manifest)}",
        expected="Docker Engine with its classic image store (overlay2)",
        actual=engine,
        remedy=_CURE,
    )


def check_layers(manifest: BundleManifest, stacks: Iterable[Sequence[str]]) -> list[CheckResult]:
    """Whether the engine has the layers that were left out, each above the very same layers.

    Args:
        manifest: of the bundle.
        stacks: diff ids of each image that the engine has, from the bottom up.
    """
    known = {tuple(stack[:count]) for stack in stacks for count in range(1, len(stack) + 1)}
    absent, checks = manifest.absent_layers, []
    for image in thin_images(manifest):
        wanted = tuple(layer.diff_id for layer in image.layers if layer.digest in absent)
        if wanted in known:
            summary = f"the {len(wanted)} layer(s) of {image.name} that were left out are in the container engine"
            checks.append(CheckResult(CHECK, "pass", summary))
            continue
        have = max((count for count in range(len(wanted)) if wanted[:count] in known), default=0)
        checks.append(
            CheckResult(
                CHECK,
                "fail",
                f"image {image.name} came without layers of {_titles(manifest)}, which the container engine lacks",
                expected=f"an image that begins with these {len(wanted)} layers, the highest {wanted[-1]}",
                actual=f"{have} of them",
                remedy=f"install {_titles(manifest)} again, which brings its images; or {_CURE}",
                evidence=wanted[have:],
            )
        )
    return checks


def _titles(manifest: BundleManifest) -> str:
    return ", ".join(base.title for base in manifest.bases if base.layers)
