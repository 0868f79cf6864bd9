# SPDX-License-Identifier: Apache-2.0
"""The package as a whole: documentation, stubs, names."""

import doctest
import importlib
import inspect
import pathlib
import pkgutil
import re
import subprocess
import sys

import pytest

import heed

NEEDS = {"heed.torch": "torch", "heed.flash_attn": "torch", "heed.transformers": "transformers"}


def modules():
    yield "heed"
    for info in pkgutil.walk_packages(heed.__path__, "heed.", onerror=lambda name: None):
        yield info.name


@pytest.mark.parametrize("name", sorted(set(modules())))
def test_examples_in_docstrings(name):
    for prefix, package in NEEDS.items():
        if name.startswith(prefix):
            pytest.importorskip(package)
    module = importlib.import_module(name)
    finder = doctest.DocTestFinder(exclude_empty=True)
    for test in finder.find(module, name, globs={"heed": heed, **vars(module)}):
        runner = doctest.DocTestRunner(optionflags=doctest.ELLIPSIS)
        runner.run(test)
        assert runner.failures == 0, test.name


@pytest.mark.parametrize("name", ["Mask", "KvCache"])
def test_examples_of_the_extensions_classes(name):
    text = inspect.getdoc(getattr(heed, name))
    test = doctest.DocTestParser().get_doctest(text, {}, name, None, None)
    assert test.examples and doctest.DocTestRunner().run(test).failed == 0


def test_everything_public_is_documented_and_annotated():
    for name in heed.__all__:
        item = getattr(heed, name)
        assert inspect.getdoc(item) or not inspect.isfunction(item), name
        if inspect.isfunction(item):
            for parameter in inspect.signature(item).parameters.values():
                assert parameter.annotation is not inspect.Parameter.empty, f"{name}: {parameter.name}"


def test_the_stub_describes_the_module():
    stubgen = pytest.importorskip("nanobind.stubgen")
    generator = stubgen.StubGen(heed._core)
    generator.put(heed._core)
    shipped = (pathlib.Path(heed.__file__).parent / "_core.pyi").read_text()
    names = {line.split("(")[0].split(":")[0].split()[-1] for line in shipped.splitlines() if line.startswith(("def ", "class "))}
    assert {n for n in dir(heed._core) if not n.startswith("_")} <= names
    strip = lambda text: [line for line in text.splitlines() if line.startswith(("def ", "class ", "    def "))]  # noqa: E731
    assert strip(generator.get()) == strip(shipped)


def test_version_matches_the_package():
    metadata = pytest.importorskip("importlib.metadata")
    try:
        assert metadata.version("heed") == heed.__version__
    except metadata.PackageNotFoundError:
        pytest.skip("heed runs from its source tree")
    assert (pathlib.Path(heed.__file__).parent / "py.typed").is_file()


ROOT = pathlib.Path(__file__).parents[2]


@pytest.mark.parametrize("page", ["README.md", "docs/python.md"])
def test_code_on_the_pages(page):
    blocks = re.findall(r"```python\n(.*?)```", (ROOT / page).read_text(), re.DOTALL)
    assert blocks
    space = {}
    for block in blocks:
        if ">>>" in block:
            test = doctest.DocTestParser().get_doctest(block, {"heed": heed}, page, page, 0)
            assert doctest.DocTestRunner().run(test).failed == 0
        else:
            exec(compile(block, page, "exec"), space)
    assert space["out"].shape == (1, 1024, 8, 64)


def test_the_example_learns():
    pytest.importorskip("transformers")
    program = ROOT / "examples" / "python" / "finetune_and_generate.py"
    run = subprocess.run([sys.executable, str(program)], capture_output=True, text=True, timeout=300, check=True)
    assert "goes on [44, 45, 46, 47, 48, 49, 50, 51, 52, 53, 54, 55]" in run.stdout


@pytest.mark.parametrize("name", sorted(NEEDS))
def test_a_submodule_comes_with_its_first_use(name):
    pytest.importorskip(NEEDS[name])
    program = f"import heed, sys; assert 'torch' not in sys.modules; assert {name}.__name__ == '{name}' and not hasattr(heed, 'nobody')"
    subprocess.run([sys.executable, "-c", program], check=True)


@pytest.mark.parametrize("name", sorted(NEEDS))
def test_a_submodule_says_what_it_lacks(name):
    program = f"""
import sys
sys.modules["torch"] = None
import heed
try:
    {name}
except AttributeError as error:
    assert str(error).startswith("{name} cannot be imported: ") and "torch" in str(error), error
else:
    raise SystemExit("no error")
"""
    subprocess.run([sys.executable, "-c", program], check=True)
