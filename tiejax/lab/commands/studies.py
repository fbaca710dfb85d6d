"""All studies by name. Each is imported when its function is called, and none loads jax."""

from collections.abc import Callable

from tiejax.lab.settings.study import Study


def exor() -> Study:
    from tiejax.lab.studies.exor.settings import STUDY

    return STUDY


def untying() -> Study:
    from tiejax.lab.studies.untying.settings import STUDY

    return STUDY


def text_mlm() -> Study:
    from tiejax.lab.studies.text_mlm.settings import STUDY

    return STUDY


def layer_tying() -> Study:
    from tiejax.lab.studies.layer_tying.settings import STUDY

    return STUDY


def embedding_coupling() -> Study:
    from tiejax.lab.studies.embedding_coupling.settings import STUDY

    return STUDY


def causal_untying() -> Study:
    from tiejax.lab.studies.causal_untying.settings import STUDY

    return STUDY


def diagnosis() -> Study:
    from tiejax.lab.studies.diagnosis.settings import STUDY

    return STUDY


def theory() -> Study:
    from tiejax.lab.studies.theory.settings import STUDY

    return STUDY


def comparison() -> Study:
    from tiejax.lab.studies.comparison.settings import STUDY

    return STUDY


# Keys: the names of studies in run directories.
STUDIES: dict[str, Callable[[], Study]] = {
    "exor": exor,
    "untying": untying,
    "text_mlm": text_mlm,
    "layer_tying": layer_tying,
    "embedding_coupling": embedding_coupling,
    "causal_untying": causal_untying,
    "diagnosis": diagnosis,
    "theory": theory,
    "comparison": comparison,
}
