"""The page of molecules: enrichment, hits against molecules screened, drawings with the atoms that made the score."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypedDict

import numpy as np
from numpy.typing import ArrayLike, NDArray

from moreauc._system import import_extra, printable, show_as_written
from moreauc.app.report.pages import COLORS, Image, Section, as_image, new_figure, plain_axes
from moreauc.app.smiles import Morgan, SmilesReader, morgan_generator
from moreauc.metrics import bedroc_score, enrichment_factor

if TYPE_CHECKING:
    from rdkit.Chem import Mol

    from moreauc.app.tables.base import Model
    from moreauc.app.tables.molecules import MoleculeTable

Array = NDArray[Any]

FRACTIONS = (0.001, 0.01, 0.05)
HEADS = ("method", *(f"EF{100 * share:g}%" for share in FRACTIONS), "BEDROC")
_DRAWN = 12  # molecules of a section
_WIDTH, _HEIGHT = 260, 200  # of a drawing
_RADIUS = 0.5  # of a coloured atom, in lengths of a bond
_RAISES, _LOWERS = (0.04, 0.43, 0.60), (0.82, 0.29, 0.36)  # colours of atoms, as those of the page
_LONGEST = 60  # letters of a SMILES below a drawing
_EXPLANATION = (
    "EFx% is the enrichment factor: how many times as many positives the best x percent of the list hold as as many "
    "molecules drawn at random. BEDROC (alpha = 20) is 1 if all positives come first; 80 % of its weight are on the "
    "first 8 % of the list. Equal scores count as a random order of these molecules."
)
_ATOMS = (
    "The score is a sum over pieces of the molecule; each piece is shared equally by its atoms: blue atoms raise the "
    "score, red atoms lower it, within a molecule by the depth of the colour."
)


class _Drawn(TypedDict):
    rank: int
    row: int
    positive: bool
    score: float
    smiles: str


def screening(labels: ArrayLike, scores: ArrayLike) -> dict[str, float]:
    """Return enrichment factors and BEDROC by name."""
    factors = {f"ef_{100 * share:g}": enrichment_factor(labels, scores, fraction=share) for share in FRACTIONS}
    return {**factors, "bedroc": bedroc_score(labels, scores)}


def screening_row(title: str, numbers: Mapping[str, float]) -> tuple[str, ...]:
    """Return the cells of a method."""
    *factors, bedroc = numbers.values()
    return (title, *(f"{factor:.2f}" for factor in factors), f"{bedroc:.4f}")


def molecule_sections(
    rows: Sequence[Sequence[str]], scores: Mapping[str, Array], table: MoleculeTable, model: Model, morgan: Morgan
) -> tuple[list[Section], dict[str, object]]:
    """Return the sections of a report, and their numbers for its JSON.

    Args:
        rows: cells of the table of methods.
        scores: of each method; the first is the model's.
        table: the molecules.
        model: whose scores are explained by atoms, if it is linear.
        morgan: settings of the fingerprints.
    """
    labels = table.targets
    first = next(iter(scores.values()))
    order = np.lexsort((np.arange(len(first)), -first))
    ranks = np.empty(len(order), dtype=np.int64)
    ranks[order] = np.arange(1, len(order) + 1)
    missed = [place for place in order[::-1] if labels[place]][:_DRAWN]
    weights = model.describe().coefficients
    text = [] if weights is None else [_ATOMS]
    drawings: dict[str, list[_Drawn]] = {}
    for key, places in (("top", order[:_DRAWN]), ("missed", missed)):
        drawings[key] = [
            {
                "rank": int(ranks[place]),
                "row": int(table.features.index[place]) + 1,
                "positive": bool(labels[place]),
                "score": float(first[place]),
                "smiles": str(table.smiles[place]),
            }
            for place in places
        ]
    images = {key: [_drawing(one, weights, morgan) for one in ones] for key, ones in drawings.items()}
    found = sum(one["positive"] for one in drawings["top"])
    sections = [
        Section("Screening", [_EXPLANATION], columns=HEADS, rows=rows, labels=1, images=[draw_hits(labels, scores)]),
        Section(
            "Molecules at the top",
            [f"The {len(images['top'])} molecules of the highest scores; {found} of them are positive.", *text],
            images=images["top"],
        ),
        Section(
            "Missed",
            [f"The {len(images['missed'])} positives of the lowest scores, the lowest first."],
            images=images["missed"],
        ),
    ]
    return sections, {**drawings}


def draw_hits(labels: Array, scores: Mapping[str, Array]) -> Image:
    """Draw the share of positives found against the number of molecules screened, for at most five methods."""
    figure, axes = new_figure(6.4, 4.6)
    number, positives = len(labels), int(labels.sum())
    screened = np.arange(1, number + 1)
    for (name, values), color in zip(scores.items(), COLORS, strict=False):
        axes.step(screened, expected_hits(labels, values) / positives, color=color, label=printable(name), where="post")
    axes.plot(screened, screened / number, color="0.6", linestyle=":", linewidth=1, label="random")
    ideal = np.minimum(screened, positives) / positives
    axes.plot(screened, ideal, color="0.6", linestyle="--", linewidth=1, label="perfect")
    axes.set(xscale="log", xlabel="molecules screened, the best first", ylabel="share of the positives found")
    axes.set_ylim(-0.01, 1.01)
    show_as_written(axes.legend(frameon=False, loc="upper left").get_texts())
    plain_axes(axes)
    text = f"Hits against cost: share of the {positives:,} positives among the best of {number:,} molecules."
    return as_image(figure, text)


def expected_hits(labels: Array, scores: Array) -> Array:
    """Return the number of positives among the first k rows, for each k; the mean over orders of equal scores.

    Example:
        >>> expected_hits(np.array([1, 0, 0, 1]), np.array([2.0, 2.0, 1.0, 3.0]))
        array([1. , 1.5, 2. , 2. ])
    """
    _, place, sizes = np.unique(-scores, return_inverse=True, return_counts=True)
    positives = np.bincount(place, weights=labels)
    hits: Array = np.cumsum(np.repeat(positives / sizes, sizes))
    return hits


def atom_weights(molecule: Mol, weights: Array, morgan: Morgan) -> Array:
    """Return what each atom contributes to the score of a linear model, without its intercept.

    A column counts with its weight, once for each piece of the molecule that has its hash (count), or shared by these
    pieces (bit); a piece is shared equally by its atoms. The sum over atoms is the score.
    """
    chem = import_extra("rdkit.Chem", "molecules")
    output = import_extra("rdkit.Chem.rdFingerprintGenerator", "molecules").AdditionalOutput()
    output.AllocateBitInfoMap()
    morgan_generator(morgan).GetCountFingerprint(molecule, additionalOutput=output)
    found = np.zeros(molecule.GetNumAtoms())
    for column, pieces in output.GetBitInfoMap().items():
        share = weights[column] / (len(pieces) if morgan.kind == "bit" else 1)
        for centre, radius in pieces:
            atoms = {centre}
            for number in chem.FindAtomEnvironmentOfRadiusN(molecule, radius, centre) if radius else ():
                bond = molecule.GetBondWithIdx(number)
                atoms |= {bond.GetBeginAtomIdx(), bond.GetEndAtomIdx()}
            found[list(atoms)] += share / len(atoms)
    return found


def _drawing(one: _Drawn, weights: Array | None, morgan: Morgan) -> Image:
    """Return the picture of a molecule, its atoms coloured by what they contribute."""
    smiles = one["smiles"] if len(one["smiles"]) <= _LONGEST else one["smiles"][: _LONGEST - 3] + "..."
    kind = "positive" if one["positive"] else "negative"
    caption = f"Rank {one['rank']:,}, {kind}, score {one['score']:.2f}, row {one['row']:,}: {printable(smiles)}"
    return Image(draw_molecule(one["smiles"], weights, morgan), caption, _WIDTH, "svg+xml")


def draw_molecule(smiles: str, weights: Array | None, morgan: Morgan) -> bytes:
    """Return an SVG picture of a molecule as its fingerprint sees it, with the atoms coloured by a linear model."""
    reader = SmilesReader()
    draw = import_extra("rdkit.Chem.Draw.rdMolDraw2D", "molecules")
    with reader.quiet():
        molecule, _ = reader.usable(smiles, strip_salts=morgan.strip_salts)
        drawer = draw.MolDraw2DSVG(_WIDTH, _HEIGHT)
        drawer.drawOptions().clearBackground = False
        colours: dict[int, tuple[float, ...]] = {}
        if weights is not None and molecule is not None:
            shares = atom_weights(molecule, weights, morgan)
            largest = float(np.abs(shares).max()) or 1.0
            colours = {atom: _tint(float(share) / largest) for atom, share in enumerate(shares)}
        ready = draw.PrepareMolForDrawing(molecule, kekulize=False)
        drawer.DrawMolecule(
            ready,
            highlightAtoms=list(colours),
            highlightAtomColors=colours,
            highlightAtomRadii=dict.fromkeys(colours, _RADIUS),
            highlightBonds=[],
        )
        drawer.FinishDrawing()
    return bytes(drawer.GetDrawingText(), "utf-8")


def _tint(value: float) -> tuple[float, ...]:
    """Return the colour of an atom whose share of the score is `value`, from -1 to 1; white at 0."""
    full = _RAISES if value > 0 else _LOWERS
    return tuple(1.0 - 0.8 * abs(value) * (1.0 - part) for part in full)
