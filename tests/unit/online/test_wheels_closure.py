"""Whether a closure is whole, under the target's markers."""

from __future__ import annotations

from airbundle.wheels.closure import Member, walk
from airbundle.wheels.target import Target

FIRST, LAST = Target("3.12", "x86_64", "2.31").environments()


def test_who_asked_for_what() -> None:
    members = [
        Member("app", "1.0", ("Lib_b>=1", "shared")),
        Member("lib-b", "1.5", ("shared[fast]>=2",)),
        Member("shared", "2.0", ("quick; extra == 'fast'",)),
        Member("quick", "1", ()),
    ]
    found = walk(["App"], members, FIRST)
    assert found.problems == ()
    assert found.asked == {"app": ("spec",), "lib-b": ("app",), "quick": ("shared",), "shared": ("app", "lib-b")}


def test_a_forgotten_dependency_is_named() -> None:
    members = [Member("app", "1.0", ('olddep>=2; python_version >= "3.10"', 'gone; sys_platform == "win32"'))]
    assert walk(["app"], members, FIRST).problems == ("app 1.0 needs olddep>=2, which is not among the wheels",)


def test_a_version_outside_the_range_is_named() -> None:
    members = [Member("app", "1.0", ("lib<2",)), Member("lib", "2.0")]
    assert walk(["app"], members, FIRST).problems == ("app 1.0 needs lib<2, among the wheels is 2.0",)


def test_a_local_version_answers_its_public_one() -> None:
    members = [Member("app", "1.0", ("torch==2.0",)), Member("torch", "2.0+cu130")]
    assert walk(["app"], members, FIRST).problems == ()


def test_extras_are_followed_only_when_asked_for() -> None:
    members = [Member("app", "1.0", ("more; extra == 'all'",))]
    assert walk(["app"], members, FIRST).problems == ()
    assert walk(["app[all]"], members, FIRST).problems == ("app 1.0 needs more, which is not among the wheels",)


def test_markers_on_the_patch_release_differ() -> None:
    members = [Member("app", "1.0", ('late; python_full_version >= "3.12.4"',))]
    assert walk(["app"], members, FIRST).problems == ()
    assert walk(["app"], members, LAST).problems == ("app 1.0 needs late, which is not among the wheels",)


def test_what_nobody_asked_for_and_what_cannot_be_read() -> None:
    members = [Member("app", "1.0", ("lib>=*",)), Member("lib", "1")]
    found = walk(["app"], members, FIRST)
    assert (found.unreached, found.unreadable) == (("lib",), ("app 1.0: lib>=*",))


def test_a_python_that_a_member_does_not_support() -> None:
    found = walk(["app"], [Member("app", "1.0", (), ">=3.13")], FIRST)
    assert found.problems == ("app 1.0 needs Python >=3.13, the target has 3.12.0",)


def test_circles_end() -> None:
    members = [Member("a", "1", ("b[x]",)), Member("b", "1", ("a", "b[x]; extra == 'x'"))]
    assert walk(["a"], members, FIRST).problems == ()
