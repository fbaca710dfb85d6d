"""Untied checkpoints in the transformers library: bitwise equal logits, no missing or unexpected tensors."""

import pytest

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

from library_models import TIED_BY_FLAG, saved  # noqa: E402

from tiejax.checkpoints.rewrite.untie import untie  # noqa: E402

pytestmark = pytest.mark.parity


def logits(folder, kind):
    model, info = getattr(transformers, kind).from_pretrained(folder, output_loading_info=True)
    assert not any(info.values()), info
    with torch.no_grad():
        return model.eval()(torch.arange(3, 9)[None]).logits, model


@pytest.mark.parametrize("name", [*TIED_BY_FLAG, "bart"])
def test_logits_are_bitwise_equal(tmp_path, name):
    folder = saved(name, True, tmp_path / "tied")
    untie(folder, tmp_path / "untied")
    (kind,) = transformers.AutoConfig.from_pretrained(folder).architectures
    (before, tied), (after, untied) = (logits(tmp_path / part, kind) for part in ("tied", "untied"))
    assert torch.equal(before, after)
    for model, is_tied in ((tied, True), (untied, False)):
        one, other = model.get_input_embeddings().weight, model.get_output_embeddings().weight
        assert (one.data_ptr() == other.data_ptr()) == is_tied
