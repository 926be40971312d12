"""Options that several commands share."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

Data = Annotated[Path, typer.Argument(metavar="DATA", help="Table: .csv, .tsv, .parquet or .pq.", show_default=False)]
Run = Annotated[Path, typer.Argument(metavar="RUN", help="Folder that `moreauc fit` wrote.", show_default=False)]
Positive = Annotated[
    str | None, typer.Option(help="Value of the positive class; found out if not given.", show_default=False)
]
MinTPR = Annotated[float, typer.Option("--min-tpr", help="Lower edge of the true positive rate, in [0, 1).")]
MaxFPR = Annotated[
    float, typer.Option("--max-fpr", help="Upper edge of the false positive rate, in (0, 1]; the budget of decisions.")
]
Drop = Annotated[
    list[str] | None, typer.Option(help="Column to leave out; may be given several times.", show_default=False)
]
Out = Annotated[Path, typer.Option(help="Folder for the results; must be new or empty.", show_default=False)]
Force = Annotated[bool, typer.Option("--force", help="Replace the results of an earlier run.")]
Checkpoint = Annotated[  # no Path, which would make "." of an empty text
    str | None,
    typer.Option(
        metavar="PATH",
        help="Folder to save the training in while it goes on; needed for --resume.",
        show_default=False,
    ),
]
Resume = Annotated[
    bool, typer.Option("--resume", help="Go on with the training in --checkpoint; begin where there is none.")
]
SaveEvery = Annotated[
    int | None,
    typer.Option(min=1, help="Steps between two saves; at the end of each epoch in any case.", show_default=False),
]
Seed = Annotated[int, typer.Option(min=0, max=2**32 - 1, help="Seed of everything drawn.")]
Groups = Annotated[
    str | None,
    typer.Option(
        help="Columns that name the group of each row, with commas; the worst groups are trained for.",
        show_default=False,
    ),
]
TopK = Annotated[
    float | None,
    typer.Option(
        help="How many of the worst groups count, or a share in (0, 1); with --groups. 1 if not given.",
        show_default=False,
    ),
]
Task = Annotated[
    str | None,
    typer.Option(help="auto, classification or regression; with --groups. auto if not given.", show_default=False),
]
KeepGroups = Annotated[bool, typer.Option("--keep-groups", help="Learn from the columns of --groups, too.")]
DropGroups = Annotated[bool, typer.Option("--drop-groups", help="Do not learn from them, as by default.")]
GroupsPerBatch = Annotated[
    int | None,
    typer.Option(min=1, help="Groups of a step; with --groups. The classifier's default.", show_default=False),
]
SamplesPerGroup = Annotated[
    int | None,
    typer.Option(
        min=1, help="Rows of each group of a step; with --groups. The classifier's default.", show_default=False
    ),
]
