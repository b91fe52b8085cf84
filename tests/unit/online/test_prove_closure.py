"""The verdicts, from facts alone."""

from __future__ import annotations

from collections.abc import Mapping

import pytest

from airbundle.prove.closure import Proof, prove_closure, table_text
from airbundle.prove.facts import Distribution, ElfFacts, GpuCode, ImageFacts, NativeFile, OsPackage, Ptx, WheelFacts
from airbundle_onsite.contract.checks import CheckResult
from airbundle_onsite.contract.profile import GpuProfile, HardwareProfile

TORCH_SASS = ("75", "80", "86", "90", "100", "120")


def profile(capability: str = "9.0", driver: str = "580.65.06", *, name: str = "NVIDIA H200") -> HardwareProfile:
    gpu = GpuProfile(names=(name,), capability=capability, memory=1, min_driver=driver)
    return HardwareProfile(id="p", title=name, gpu=gpu, min_glibc="2.31")


CPU = HardwareProfile(id="cpu", title="a CPU", min_glibc="2.31")


def native(
    path: str = "pkg/_C.abi3.so",
    *needed: str,
    versions: Mapping[str, tuple[str, ...]] | None = None,
    sass: tuple[str, ...] = (),
    ptx: tuple[Ptx, ...] = (),
    soname: str = "",
    machine: str = "x86_64",
    unread: int = 0,
) -> NativeFile:
    elf = ElfFacts(machine=machine, soname=soname, needed=needed or ("libc.so.6",), versions=versions or {})
    return NativeFile(path=path, size=1, elf=elf, gpu=GpuCode(sass=sass, ptx=ptx, entries=len(sass), unread=unread))


def wheel(*natives: NativeFile, name: str = "pkg", version: str = "1.0", cuda: int = 0) -> WheelFacts:
    return WheelFacts(name=name, version=version, tags="cp312-abi3-manylinux_2_28_x86_64", natives=natives, cuda=cuda)


def the(proof: Proof, check_id: str) -> CheckResult:
    (found,) = [check for check in proof.checks if check.id == check_id]
    return found


def statuses(proof: Proof) -> set[str]:
    return {row.status for row in proof.rows}


def test_the_sentence_for_a_gpu_that_was_dropped() -> None:
    torch = wheel(native(sass=TORCH_SASS), name="torch", version="2.11.0+cu130")
    check = the(prove_closure([torch], profile("7.0", name="V100")), "prove.gpu")
    assert check.status == "fail"
    assert check.summary == "torch 2.11.0+cu130 has sm_75 80 86 90 100 120: V100 (sm_70) cannot run it"
    assert "torch 2.10.0" in check.remedy


@pytest.mark.parametrize("capability", ["7.5", "8.0", "8.6", "8.9", "9.0", "10.3", "12.0"])
def test_machine_code_that_fits(capability: str) -> None:
    assert statuses(prove_closure([wheel(native(sass=TORCH_SASS))], profile(capability))) == {"pass"}


@pytest.mark.parametrize(
    ("driver", "status", "said"),
    [("570.26", "warn", "at first use"), ("550.54.14", "fail", "needs a driver of CUDA 12.8, not 12.4")],
)
def test_ptx_alone(driver: str, status: str, said: str) -> None:
    code = wheel(native(sass=("80",), ptx=(Ptx("80", "8.7"),)))
    check = the(prove_closure([code], profile("9.0", driver)), "prove.gpu")
    assert check.status == status
    assert said in check.summary


def test_a_file_for_other_gpus_beside_one_that_fits_is_evidence() -> None:
    both = wheel(native("pkg/a.so", sass=("90",)), native("pkg/b.so", sass=("100f",)))
    check = the(prove_closure([both], profile()), "prove.gpu")
    assert check.status == "pass"
    assert check.evidence == ("pkg/b.so: no code for this GPU",)


def test_a_file_with_ptx_too_new_beside_one_that_fits() -> None:
    both = wheel(native("pkg/a.so", sass=("90",)), native("pkg/fa2.so", sass=("80",), ptx=(Ptx("80", "9.0"),)))
    check = the(prove_closure([both], profile("9.0", "535.54.03")), "prove.gpu")
    assert check.status == "warn"
    assert "fa2.so, PTX too new for a driver of CUDA 12.2" in check.summary


def test_an_optional_package_without_code_is_a_warning() -> None:
    sparse = wheel(native("nvidia/lib/libcusparseLt.so.0", sass=("80", "90")), name="nvidia-cusparselt-cu12")
    assert the(prove_closure([sparse], profile("7.0")), "prove.gpu").status == "warn"


def test_an_optional_package_may_come_as_ptx() -> None:
    storage = wheel(
        native("nvidia/lib/libcufile.so.0", sass=("80",), ptx=(Ptx("80", "8.0"),)), name="nvidia-cufile-cu12"
    )
    assert statuses(prove_closure([storage], profile())) == {"pass"}


def test_bare_code_among_tests_is_test_data() -> None:
    sample = NativeFile(path="pkg/tests/data/sample.ptx", size=100, gpu=GpuCode(ptx=(Ptx("50", "6.0"),), entries=1))
    (row,) = prove_closure([wheel(sample)], profile()).rows
    assert (row.gpu, row.status) == ("", "pass")
    kernel = NativeFile(path="pkg/data/kernel.ptx", size=100, gpu=sample.gpu)
    assert statuses(prove_closure([wheel(kernel)], profile())) == {"warn"}


def test_gpu_code_does_not_matter_without_a_gpu() -> None:
    proof = prove_closure([wheel(native(sass=("90",), unread=0), cuda=13)], CPU)
    assert [check.id for check in proof.checks] == ["prove.package"]


def test_code_in_an_unknown_form_is_a_warning() -> None:
    assert the(prove_closure([wheel(native(unread=64))], profile()), "prove.gpu.unread").status == "warn"


@pytest.mark.parametrize(
    ("major", "driver", "driver_cuda", "status"),
    [
        (13, "580.65.06", None, "pass"),
        (13, "575.57.08", None, "fail"),
        (13, "535.54.03", "13.1", "pass"),
        (12, "525.60.13", None, "pass"),
        (12, "580.65.06", None, "pass"),
        (12, "520.61.05", None, "fail"),
        (11, "450.80.02", None, "pass"),
        (12, "", None, "warn"),
    ],
)
def test_toolkit_and_driver(major: int, driver: str, driver_cuda: str | None, status: str) -> None:
    proof = prove_closure([wheel(native(), cuda=major)], profile("9.0", driver), driver_cuda=driver_cuda)
    assert the(proof, "prove.cuda").status == status


@pytest.mark.parametrize(("name", "status"), [("NVIDIA H100", "warn"), ("NVIDIA GeForce RTX 4090", "fail")])
def test_forward_compatibility_is_for_data_centre_cards(name: str, status: str) -> None:
    image = ImageFacts(name="demo:1", libc="glibc", glibc="2.39", names=("lib/libc.so.6",), compat_driver="580.95.05")
    proof = prove_closure([wheel(native(), cuda=13)], profile("9.0", "550.54.14", name=name), image)
    check = the(proof, "prove.cuda")
    assert check.status == status
    assert "forward compatibility" in check.summary


def test_glibc_of_the_profile_and_of_the_image() -> None:
    new = wheel(native(versions={"libc.so.6": ("GLIBC_2.4", "GLIBC_2.34")}))
    check = the(prove_closure([new], CPU), "prove.glibc")
    assert (check.status, check.summary) == ("fail", "pkg 1.0 needs glibc 2.34; the profile promises 2.31")
    image = ImageFacts(name="demo:1", libc="glibc", glibc="2.36", names=("lib/libc.so.6",))
    assert statuses(prove_closure([new], CPU, image)) == {"pass"}


@pytest.mark.parametrize("version", ["GLIBC_2.36", "GLIBC_ABI_DT_RELR"])
def test_packed_relocations_need_a_new_glibc(version: str) -> None:
    check = the(prove_closure([wheel(native(versions={"libc.so.6": (version,)}))], CPU), "prove.glibc")
    assert check.expected == "glibc 2.36"


def test_musl_has_no_glibc() -> None:
    image = ImageFacts(name="alpine:3", libc="musl", names=("lib/libc.so.6",))
    check = the(prove_closure([wheel(native(versions={"libc.so.6": ("GLIBC_2.4",)}))], CPU, image), "prove.glibc")
    assert (check.status, check.actual) == ("fail", "image alpine:3 has musl instead")


def test_libstdcxx_is_certain_in_an_image_and_likely_on_a_host() -> None:
    new = wheel(native(versions={"libstdc++.so.6": ("GLIBCXX_3.4.30",)}))
    assert the(prove_closure([new], CPU), "prove.glibc").status == "warn"
    image = ImageFacts(name="demo:1", libc="glibc", glibc="2.31", glibcxx="3.4.28", names=("lib/libc.so.6",))
    assert the(prove_closure([new], CPU, image), "prove.glibc").status == "fail"


def test_a_library_from_another_wheel_is_there() -> None:
    user = wheel(native("a/_C.abi3.so", "libcudart.so.13", "libcuda.so.1"), name="a")
    cudart = wheel(native("nvidia/cu13/lib/libcudart.so.13", soname="libcudart.so.13"), name="nvidia-cuda-runtime")
    assert statuses(prove_closure([user, cudart], profile())) == {"pass"}
    check = the(prove_closure([user], profile()), "prove.needed")
    assert (check.status, check.expected) == ("fail", "libcudart.so.13")


def test_the_drivers_libraries_are_there_only_with_a_gpu() -> None:
    user = wheel(native("a/_C.abi3.so", "libcuda.so.1"))
    assert the(prove_closure([user], CPU), "prove.needed").expected == "libcuda.so.1"


def test_a_file_opened_on_demand_is_a_warning_unless_something_needs_it() -> None:
    plugin = native("a/plugin.so", "libodd.so.1", soname="libplugin.so")
    assert the(prove_closure([wheel(plugin)], CPU), "prove.needed").status == "warn"
    user = native("a/_C.abi3.so", "libplugin.so")
    assert the(prove_closure([wheel(plugin, user)], CPU), "prove.needed").status == "fail"


def test_what_a_package_manager_brings_is_named_with_its_package() -> None:
    check = the(prove_closure([wheel(native("a/_C.abi3.so", "libgomp.so.1"))], CPU), "prove.needed")
    assert check.status == "warn"
    assert "libgomp1 (Debian, Ubuntu)" in check.remedy
    image = ImageFacts(name="demo:1", libc="glibc", glibc="2.36")
    assert (
        the(prove_closure([wheel(native("a/_C.abi3.so", "libgomp.so.1"))], CPU, image), "prove.needed").status == "fail"
    )


def test_files_known_to_be_optional_are_left_out() -> None:
    pool = native("numba/np/ufunc/tbbpool.cpython-312-x86_64-linux-gnu.so", "libtbb.so.12")
    assert statuses(prove_closure([wheel(pool, name="numba")], CPU)) == {"pass"}
    assert statuses(prove_closure([wheel(pool, name="other")], CPU)) == {"fail"}


def test_another_architecture() -> None:
    check = the(prove_closure([wheel(native(machine="aarch64"))], CPU), "prove.machine")
    assert (check.status, check.actual, check.expected) == ("fail", "aarch64", "x86_64")
    mixed = wheel(native(), native("pkg/arm64/tool", "libodd.so", machine="aarch64"))
    assert statuses(prove_closure([mixed], CPU)) == {"pass"}


def test_a_file_that_cannot_be_read() -> None:
    broken = NativeFile(path="pkg/testdata/x.so", size=80, problem="cut short")
    check = the(prove_closure([wheel(broken, native())], CPU), "prove.readable")
    assert (check.status, check.evidence) == ("warn", ("pkg/testdata/x.so: cut short",))


def engine_image() -> ImageFacts:
    site = "usr/lib/python3/dist-packages"
    return ImageFacts(
        name="engine:1",
        natives=(
            native(f"{site}/vllm/_C.abi3.so", "libcudart.so.13", sass=("80",)),
            native("usr/lib/libcublas.so.13", soname="libcublas.so.13", sass=("80",)),
            native("usr/lib/libc.so.6", "ld-linux-x86-64.so.2", soname="libc.so.6"),
            native("opt/tool"),
        ),
        names=("usr/lib/libc.so.6", "usr/lib/ld-linux-x86-64.so.2"),
        libc="glibc",
        glibc="2.39",
        require_cuda="cuda>=13.0",
        distributions=(Distribution("vllm", "0.33.0", f"{site}/vllm.dist-info", (), (f"{site}/vllm/_C.abi3.so",)),),
        os_packages=(
            OsPackage("libc6", "2.39", "deb", ("usr/lib/libc.so.6",)),
            OsPackage("libcublas", "13.1", "deb", ("usr/lib/libcublas.so.13",)),
        ),
    )


def test_an_image_is_judged_by_its_projects_and_packages() -> None:
    proof = prove_closure([], profile("9.0"), engine_image())
    assert [(row.package, row.kind, row.status) for row in proof.rows] == [
        ("vllm", "image", "fail"),
        ("libc6", "os", "pass"),
        ("libcublas", "os", "warn"),
        ("other files of engine:1", "os", "pass"),
    ]
    assert the(proof, "prove.needed").status == "warn", "an image that its maker runs may do without"


def test_what_the_image_asks_of_the_driver() -> None:
    assert the(prove_closure([], profile(), engine_image()), "prove.image.require").status == "pass"
    check = the(prove_closure([], profile("9.0", "550.54.14"), engine_image()), "prove.image.require")
    assert check.status == "fail"
    assert "CUDA 12.4, driver 550.54.14" in check.summary


def test_the_table_shows_the_worst_first_and_hides_quiet_os_packages() -> None:
    lines = table_text(prove_closure([], profile("9.0"), engine_image()).rows).splitlines()
    assert [line.split()[0] for line in lines[1:3]] == ["FAIL", "WARN"]
    assert lines[-1] == "and 2 OS packages of the image without GPU code, nothing missing"
    assert not any("libc6" in line for line in lines)


def test_pure_wheels_have_no_row() -> None:
    assert prove_closure([wheel()], CPU) == Proof((), ())


def test_a_host_s_shared_python_is_named_with_its_version() -> None:
    check = the(prove_closure([wheel(native("a/_C.abi3.so", "libpython3.12.so.1.0"))], CPU), "prove.needed")
    assert check.status == "warn"
    assert "libpython3.12 or libpython3.12t64 (Debian, Ubuntu) or python3.12-libs (RHEL)" in check.remedy
