import pytest

from swarmtrain.config.built_in import built_in_parameters, layout_digest, num_values_of
from swarmtrain.config.settings import ModelSection
from swarmtrain.models.byte_transformer import build_model
from swarmtrain.models.tensors import Layout

SIZES = [(1, 16, 2, 32), (3, 24, 3, 8), (4, 128, 4, 128)]


@pytest.mark.parametrize(("layers", "width", "heads", "context"), SIZES)
def test_what_is_known_of_the_built_in_model_is_true(
    layers: int, width: int, heads: int, context: int
) -> None:
    section = ModelSection(layers=layers, width=width, heads=heads, context=context)
    layout = Layout.of(build_model(section, 1), 64)
    facts = built_in_parameters(section)
    assert [(spec.name, spec.shape, spec.dtype) for spec in layout.parameters] == list(facts)
    assert layout_digest(facts) == layout.digest
    assert num_values_of(facts) == layout.num_values


def test_nothing_is_known_of_a_model_that_peers_bring() -> None:
    assert built_in_parameters(ModelSection(kind="custom")) == ()
