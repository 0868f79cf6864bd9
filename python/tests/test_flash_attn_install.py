# SPDX-License-Identifier: Apache-2.0
"""heed.flash_attn.install(): each case in a process of its own."""

import subprocess
import sys
import textwrap

import pytest

pytest.importorskip("torch")


def run(program, *arguments):
    result = subprocess.run([sys.executable, "-c", textwrap.dedent(program), *arguments], capture_output=True, text=True, timeout=120)
    assert result.returncode == 0, result.stderr


def test_answers_imports_and_metadata():
    run("""
        import importlib.metadata, importlib.util, sys
        import heed.flash_attn
        before = set(sys.modules)
        heed.flash_attn.install(); heed.flash_attn.install()
        assert importlib.util.find_spec("flash_attn") is not None
        assert importlib.util.find_spec("flash_attn.cute") is None
        import flash_attn, flash_attn.flash_attn_interface
        from flash_attn import flash_attn_func, flash_attn_varlen_func
        from flash_attn.bert_padding import pad_input, unpad_input, index_first_axis
        from flash_attn.flash_attn_interface import flash_attn_with_kvcache
        from flash_attn.layers.rotary import apply_rotary_emb
        assert flash_attn_func is heed.flash_attn.flash_attn_func and flash_attn.bert_padding.unpad_input is unpad_input
        for name in ("flash_attn", "flash-attn", "Flash.Attn"):
            assert importlib.metadata.version(name) == flash_attn.__version__ == "2.8.3"
        assert importlib.metadata.version("numpy") and importlib.metadata.metadata("flash_attn")["Name"] == "flash_attn"
        assert not [d for d in importlib.metadata.distributions(path=[]) if d.metadata["Name"] == "flash_attn"]
        if sys.version_info >= (3, 10):
            assert importlib.metadata.packages_distributions()["flash_attn"] == ["flash_attn"]
        heed.flash_attn.uninstall(); heed.flash_attn.uninstall()
        assert not [name for name in set(sys.modules) - before if name.startswith("flash_attn")]
        try:
            import flash_attn.bert_padding
            raise SystemExit("still there")
        except ModuleNotFoundError:
            pass
        try:
            importlib.metadata.version("flash_attn")
            raise SystemExit("metadata still there")
        except importlib.metadata.PackageNotFoundError:
            pass
        heed.flash_attn.install()
        import flash_attn
        assert flash_attn is heed.flash_attn
    """)


def test_a_real_one_is_kept_or_replaced_and_brought_back(tmp_path):
    package, metadata = tmp_path / "flash_attn", tmp_path / "flash_attn-2.5.0.dist-info"
    package.mkdir()
    metadata.mkdir()
    (package / "__init__.py").write_text("real = True\n")
    (package / "losses.py").write_text("")
    (metadata / "METADATA").write_text("Metadata-Version: 2.1\nName: flash_attn\nVersion: 2.5.0\n")
    run("""
        import importlib.metadata, sys
        sys.path.insert(0, sys.argv[1])
        import flash_attn, flash_attn.losses
        import heed.flash_attn
        real, losses = flash_attn, flash_attn.losses
        try:
            heed.flash_attn.install()
            raise SystemExit("hidden")
        except RuntimeError as error:
            assert "replace=True" in str(error)
        import flash_attn
        assert flash_attn is real and importlib.metadata.version("flash_attn") == "2.5.0"
        heed.flash_attn.install(replace=True)
        import flash_attn
        assert flash_attn is heed.flash_attn and importlib.metadata.version("flash_attn") == "2.8.3"
        try:
            import flash_attn.losses
            raise SystemExit("a part of the real one beside ours")
        except ModuleNotFoundError:
            pass
        heed.flash_attn.uninstall()
        import flash_attn, flash_attn.losses
        assert flash_attn is real and flash_attn.losses is losses and importlib.metadata.version("flash_attn") == "2.5.0"
    """, str(tmp_path))  # fmt: skip


def test_refuses_beside_a_module_without_a_spec_or_metadata_alone(tmp_path):
    (tmp_path / "flash_attn-2.5.0.dist-info").mkdir()
    (tmp_path / "flash_attn-2.5.0.dist-info" / "METADATA").write_text("Metadata-Version: 2.1\nName: flash-attn\nVersion: 2.5.0\n")
    run("""
        import sys, types
        import heed.flash_attn
        def refuses():
            try:
                heed.flash_attn.install()
            except RuntimeError:
                return True
        sys.modules["flash_attn"] = types.ModuleType("flash_attn")
        assert refuses()
        del sys.modules["flash_attn"]
        sys.path.insert(0, sys.argv[1])
        assert refuses()
    """, str(tmp_path))  # fmt: skip


def test_import_of_heed_alone_installs_nothing():
    run("""
        import sys
        import heed
        assert "torch" not in sys.modules
        import heed.flash_attn
        assert not [name for name in sys.modules if name.startswith("flash_attn")]
    """)


def test_transformers_finds_it(tmp_path):
    """What it asks before it loads a model's own code, and before it takes flash-attention for there."""
    pytest.importorskip("transformers")
    code = tmp_path / "modeling_own.py"
    code.write_text("import torch\nfrom flash_attn import flash_attn_func\nfrom flash_attn.bert_padding import pad_input\n")
    run("""
        import sys
        import heed.flash_attn
        heed.flash_attn.install()
        from transformers.dynamic_module_utils import check_imports
        from transformers.utils import import_utils
        check_imports(sys.argv[1])
        assert import_utils._is_package_available("flash_attn", return_version=True) in ((True, "2.8.3"), True)
        import_utils.is_torch_cuda_available = lambda: True  # it takes flash-attention for there on GPUs only
        assert import_utils.is_flash_attn_2_available()
        newer = getattr(import_utils, "is_flash_attn_greater_or_equal", None)
        assert newer is None or newer("2.4.1") and not newer("3.0")
        fa4 = getattr(import_utils, "is_flash_attn_4_available", lambda: False)
        assert not fa4()
        from transformers.modeling_flash_attention_utils import _flash_attention_forward, _lazy_imports
        functions = _lazy_imports("flash_attention_2")
        assert functions[0] is heed.flash_attn.flash_attn_func and functions[1] is heed.flash_attn.flash_attn_varlen_func
        import torch
        q, k, v = torch.randn(3, 2, 6, 4, 8)
        mask = torch.tensor([[0, 0, 1, 1, 1, 1], [1] * 6])
        out = _flash_attention_forward(q, k, v, mask, 6, is_causal=True, sliding_window=3, attn_implementation="flash_attention_2")
        want = heed.flash_attn.flash_attn_func(q[:1, 2:], k[:1, 2:], v[:1, 2:], causal=True, window_size=(2, 0))
        assert torch.equal(out[:1, 2:], want) and not out[0, :2].any()
    """, str(code))  # fmt: skip
