"""Rebinding upstream names: on a module made for it, and what the installed petals and hivemind offer for it."""

from __future__ import annotations

import importlib
import linecache
import sys
import textwrap
from collections.abc import Callable, Iterator
from types import ModuleType
from typing import Any

import pytest

from swarmctl.errors import UpstreamDrift
from swarmctl.upstream import patches
from swarmctl.upstream.patching import Patch, applied, drift_of, fingerprint, patched_by, resolve

NAME = "stand_in_upstream"
SOURCE = '''
    PREFIX = "/tmp/"

    def greet(name):
        """Says hello."""
        return f"hello {name}"

    class Base:
        def inherited(self):
            return "base"

    class Daemon(Base):
        SOCKET = "/unix/tmp/"

        @staticmethod
        def arguments(*words):
            return list(words)

        @classmethod
        def made(cls):
            return cls.__name__

        def method(self):
            return "original"
'''


@pytest.fixture
def upstream() -> Iterator[ModuleType]:
    """A module with source, as an installed one has."""
    source = textwrap.dedent(SOURCE)
    module = ModuleType(NAME)
    module.__file__ = f"/{NAME}.py"
    linecache.cache[module.__file__] = (len(source), None, source.splitlines(keepends=True), module.__file__)
    exec(compile(source, module.__file__, "exec"), vars(module))
    sys.modules[NAME] = module
    yield module
    del sys.modules[NAME]
    del linecache.cache[module.__file__]


def a_patch(
    target: str, replacement: Callable[[Any], Any], name: str = "a-patch", **relies_on: tuple[str, ...]
) -> Patch:
    """A patch of the stand-in module; `relies_on` names functions of it."""
    return Patch(
        name=name,
        target=f"{NAME}:{target}",
        replacement=replacement,
        why="for the test",
        until="the test is over",
        relies_on={f"{NAME}:{path}": known for path, known in relies_on.items()},
    )


def louder(original: Callable[[str], str]) -> Callable[[str], str]:
    return lambda name: original(name).upper()


def test_a_replacement_is_bound_within_the_scope_and_the_original_after_it(upstream: ModuleType) -> None:
    before = dict(vars(upstream))

    with applied(a_patch("greet", louder)):
        assert upstream.greet("petals") == "HELLO PETALS"
        assert patched_by(f"{NAME}:greet") == "a-patch"

    assert dict(vars(upstream)) == before
    assert patched_by(f"{NAME}:greet") is None


def test_an_error_in_the_scope_puts_the_originals_back(upstream: ModuleType) -> None:
    before = upstream.greet

    with pytest.raises(ZeroDivisionError), applied(a_patch("greet", louder)):
        raise ZeroDivisionError

    assert upstream.greet is before


def test_a_replacement_that_cannot_be_made_leaves_nothing_bound(upstream: ModuleType) -> None:
    before, daemon = dict(vars(upstream)), dict(vars(upstream.Daemon))

    def fails(_original: object) -> object:
        raise LookupError("no replacement")

    with pytest.raises(LookupError), applied(a_patch("greet", louder), a_patch("Daemon.method", fails)):
        raise AssertionError("the scope must not be entered")

    assert dict(vars(upstream)) == before
    assert dict(vars(upstream.Daemon)) == daemon


@pytest.mark.parametrize(
    ("target", "replacement"),
    [
        ("Daemon.arguments", lambda original: staticmethod(lambda *words: ["wrapped", *original.__func__(*words)])),
        ("Daemon.made", lambda _original: classmethod(lambda cls: f"a {cls.__name__}")),
        ("Daemon.method", lambda _original: lambda _self: "replaced"),
        ("Daemon.SOCKET", lambda _original: "/unix/ours/"),
        ("PREFIX", lambda _original: "/ours/"),
    ],
    ids=["static method", "class method", "method", "class attribute", "module attribute"],
)
def test_whatever_was_bound_is_put_back_as_the_object_it_was(
    upstream: ModuleType, target: str, replacement: Callable[[Any], Any]
) -> None:
    holder, name, _ = resolve(f"{NAME}:{target}")
    before = dict(vars(holder))

    with applied(a_patch(target, replacement)):
        assert vars(holder)[name] is not before[name]

    assert dict(vars(holder)) == before


def test_a_static_method_works_on_the_class_and_on_an_instance_while_it_is_replaced(upstream: ModuleType) -> None:
    patch = a_patch(
        "Daemon.arguments", lambda original: staticmethod(lambda *words: ["wrapped", *original.__func__(*words)])
    )

    with applied(patch):
        assert upstream.Daemon.arguments("a") == upstream.Daemon().arguments("a") == ["wrapped", "a"]


def test_an_inherited_name_is_not_left_on_the_class_that_inherits_it(upstream: ModuleType) -> None:
    with applied(a_patch("Daemon.inherited", lambda _original: lambda _self: "patched")):
        assert (upstream.Daemon().inherited(), upstream.Base().inherited()) == ("patched", "base")

    assert "inherited" not in vars(upstream.Daemon)
    assert upstream.Daemon().inherited() == "base"


@pytest.mark.parametrize("target", ["greet", "PREFIX", "Daemon.SOCKET"])
def test_patching_what_is_patched_is_refused_by_name(upstream: ModuleType, target: str) -> None:
    outer = a_patch(target, lambda _original: "outer", name="the-outer-one")
    inner = a_patch(target, lambda _original: "inner")

    with applied(outer):
        with pytest.raises(UpstreamDrift) as caught, applied(inner):
            raise AssertionError("the scope must not be entered")
        assert patched_by(f"{NAME}:{target}") == "the-outer-one"

    assert caught.value.reasons == (f"{NAME}:{target} is patched already, by the-outer-one",)


def test_two_patches_of_one_name_at_once_are_refused(upstream: ModuleType) -> None:
    before = upstream.greet

    with pytest.raises(UpstreamDrift) as caught, applied(a_patch("greet", louder), a_patch("greet", louder, name="b")):
        raise AssertionError("the scope must not be entered")

    assert caught.value.reasons[0] == f"{NAME}:greet would be patched twice, by a-patch and b"
    assert upstream.greet is before


def test_drift_of_any_function_changes_nothing_and_names_it(upstream: ModuleType) -> None:
    before = upstream.greet
    known = fingerprint(upstream.greet)

    with (
        pytest.raises(UpstreamDrift) as caught,
        applied(a_patch("PREFIX", lambda _: "/ours/", greet=(known,)), a_patch("greet", louder, greet=("00000000",))),
    ):
        raise AssertionError("the scope must not be entered")

    assert caught.value.reasons == (f"{NAME}:greet has fingerprint {known}, verified 00000000",)
    assert (upstream.greet, upstream.PREFIX) == (before, "/tmp/")


@pytest.mark.parametrize("target", ["gone", "Daemon.gone", "Gone.method"])
def test_a_name_that_upstream_has_no_more_is_drift(upstream: ModuleType, target: str) -> None:
    with pytest.raises(UpstreamDrift, match=f"upstream has no {NAME}:{target}"), applied(a_patch(target, louder)):
        raise AssertionError("the scope must not be entered")


def test_a_module_that_is_gone_is_drift() -> None:
    with pytest.raises(UpstreamDrift, match="upstream has no no_such_module:name"):
        resolve("no_such_module:name")


def test_a_function_without_source_is_drift(upstream: ModuleType) -> None:
    upstream.greet = len

    assert drift_of(a_patch("PREFIX", louder, greet=("00000000",)))[0].startswith(f"{NAME}:greet has no source")


def test_a_fingerprint_does_not_see_comments_formatting_and_the_docstring() -> None:
    one, other = functions(
        "def f(a):\n    '''Says this.'''\n    return a + 1  # a comment",
        "def f( a ):\n    '''Says\n    that.'''\n\n    return (a +\n        1)",
    )

    assert fingerprint(one) == fingerprint(other)


@pytest.mark.parametrize("changed", ["def f(a):\n    return a + 2", "def f(a, b=0):\n    return a + 1"])
def test_a_fingerprint_sees_every_change_of_code(changed: str) -> None:
    one, other = functions("def f(a):\n    return a + 1", changed)

    assert fingerprint(one) != fingerprint(other)


def functions(*sources: str) -> Iterator[Callable[..., Any]]:
    """The function `f` of each source."""
    for number, source in enumerate(sources):
        path, made = f"/made-{number}.py", {}
        linecache.cache[path] = (len(source), None, source.splitlines(keepends=True), path)
        exec(compile(source, path, "exec"), made)
        yield made["f"]


# --- the installed packages -------------------------------------------------------------------------------------


@pytest.mark.parametrize("patch", patches.catalogue(), ids=lambda patch: patch.name)
def test_the_installed_packages_are_those_that_the_patches_were_verified_with(patch: Patch) -> None:
    assert drift_of(patch) == ()
    assert patched_by(patch.target) is None


def test_every_patch_says_why_and_until_when_and_has_a_name_of_its_own() -> None:
    catalogue = patches.catalogue()

    assert all(len(patch.why) > 20 and len(patch.until) > 20 for patch in catalogue)
    assert len({patch.name for patch in catalogue}) == len({patch.target for patch in catalogue}) == len(catalogue)


def test_all_patches_can_be_applied_together_and_leave_no_trace() -> None:
    holders = {patch.name: resolve(patch.target)[:2] for patch in patches.catalogue()}
    before = {name: vars(holder)[attribute] for name, (holder, attribute) in holders.items()}

    with applied(*patches.catalogue()):
        for patch in patches.catalogue():
            assert patched_by(patch.target) == patch.name

    for name, (holder, attribute) in holders.items():
        assert vars(holder)[attribute] is before[name]


def test_the_sessions_patch_does_not_mark_the_session_class_itself() -> None:
    class Session:
        pass

    before = dict(vars(Session))
    with applied(patches.sessions_are(Session)):
        assert importlib.import_module("petals.client.remote_sequential").InferenceSession is Session
        assert dict(vars(Session)) == before


def test_the_daemons_command_is_wrapped_and_its_port_mapping_is_off() -> None:
    from hivemind.p2p import P2P

    with applied(patches.daemon_dies_with_us()):
        command = P2P._make_process_args("p2pd", natPortMap=True, autonat=True, quic=True)

    daemon = command[command.index("p2pd") :]
    assert command[0] == sys.executable
    assert "-natPortMap=0" in daemon
    assert "-autonat=0" in daemon
    assert "-quic=1" in daemon


def test_loaded_blocks_are_counted_one_by_one() -> None:
    counted: list[int] = []
    count = patches.blocks_are_counted(counted.append).replacement(lambda block: f"block {block}")

    assert [count(7), count(8)] == ["block 7", "block 8"]
    assert counted == [1, 2]
