"""The public files that the loaders read: where they are, how a download becomes them, and their checksums."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

from experiments.data._prepare import (
    Prepare,
    collect_images,
    content_sha256,
    unpack,
    with_adult_ends,
    without_blank_lines,
    without_columns,
    without_repeated_smiles,
)

__all__ = ["PUBLIC_FILES", "PublicFile"]


@dataclass(frozen=True)
class PublicFile:
    """A file that anyone can download.

    Attributes:
        name: name that the loaders look for, without `.gz`.
        subfolder: folder that it lies in, inside the user's or the cache.
        urls: where it can be had, tried in this order.
        sha256: checksum of the content: of a download after `prepare`, of a `.gz` decompressed, of a tar that of the
            names and contents of its files.
        source: who made it, and the licence as far as one is stated.
        prepare: makes the content of the file out of a raw download.
        packed_sha256: checksum of a download that is packed, compared before it is unpacked; None where the packing
            differs from time to time (archives that GitHub makes on demand) or from address to address.
    """

    name: str
    subfolder: str
    urls: tuple[str, ...]
    sha256: str
    source: str
    prepare: Prepare = field(default=unpack, repr=False)
    packed_sha256: str | None = None

    @property
    def extra(self) -> str:
        """The extra of this library that brings what a download needs."""
        return "experiments"

    def checksum(self, path: Path) -> str:
        """Return what must equal `sha256` for a copy of the file; the path may end in `.gz`."""
        return content_sha256(path, tar=self.name.endswith(".tar"))


_RAW = "https://raw.githubusercontent.com"
_DEEPCHEM = f"{_RAW}/deepchem/deepchem/fbe3b911a94a6eb8c84c1a9e7ac67a472c49ea80/datasets"
_SAMOJU = f"{_RAW}/saisrinivas-samoju/MoleculeNet/d59ed1c33facfa65df63c119c429a73e58709a42/datasets/csv_files"
_CAPFREDDY = f"{_RAW}/CapFreddy/MoleculeNet/d9609003ca3dfa2be500f54dc74d217265ade563/src/MoleculeNet"
_DEEPCHEM_STORE = "https://deepchemdata.s3-us-west-1.amazonaws.com/datasets"
_MILSURVEY = f"{_RAW}/macarbonneau/MILSurvey/c612d614d945f9f442d7454e288b34369e294e58/Datasets"
_SMILES = f"{_RAW}/fulowl/smiles/90cc3c044ded546502851ae45d59992d97cea953/data"
_MIL = f"{_RAW}/rosasalberto/mil/a2c6414122da38dbfeea94d5a660e7306e2408aa/mil/data/datasets/csv"
_UCI = "https://archive.ics.uci.edu"
_SHAP = f"{_RAW}/shap/shap/df974a1966294b9c7acebb1373fd6dc5445d1d3d/data"
_FAIRNESS = f"{_RAW}/YuzhongHuangCS/fairness/10dcbc38734e5f95a574c44de972b8e084229d38"
_PROPUBLICA = f"{_RAW}/propublica/compas-analysis/bafff5da3f2e45eca6c2d5055faad269defd135a"
_TILES = f"{_RAW}/GeorgeBatch/LC25000-clean/c6c55395b7f62910cf90bce6234f07e2671ff904/annotations"
_COLON = "https://github.com/ilkayGkbdk/Colon-Cancer-Detection/archive/b9916f25ee8efe3c2af631686b05b19244bdbc9b.tar.gz"
_LUNG = (
    "https://github.com/loser564/Lung-Cancer-Prediction-Model/archive/3a1a557e8364e961a2a5b3e9126fafeb8244b531.tar.gz"
)

_MOLECULENET = "MoleculeNet (Wu et al., 2018), MIT as stated by DeepChem"
_ADULT = "Adult (Becker and Kohavi, UCI, 1996), CC BY 4.0"
_LC25000 = "LC25000 (Borkowski et al., arXiv:1912.12142), no licence stated"
_LC25000_TILES = "LC25000-clean (github.com/GeorgeBatch/LC25000-clean), no licence stated"
# they identify people
_COMPAS_PERSONS = ("name", "first", "last", "dob", "c_case_number", "r_case_number", "vr_case_number")

# DeepChem's own tox21.csv.gz is an older table of 8014 rows, so it does not stand here. That its store has the HIV.csv
# and muv.csv.gz meant here is likely, not known; a wrong file is refused by its checksum.
_FILES = (
    PublicFile(
        "tox21.csv",
        "molecules",
        (f"{_SAMOJU}/tox21.csv", f"{_CAPFREDDY}/raw/tox21.csv"),
        "7d7e7facd853a63e79ddce4e9c3fcb7a0d83a1c300b603031c0f2c64fbe77761",
        _MOLECULENET,
    ),
    PublicFile(
        "muv.csv",
        "molecules",
        (f"{_DEEPCHEM}/muv.csv.gz", f"{_DEEPCHEM_STORE}/muv.csv.gz"),
        "ed7a1fa1cbdaa220e2d2804240128d02029443ba117fc1dbfb8d771db8c3e2a4",
        _MOLECULENET,
        without_repeated_smiles,  # 40 of 93127 rows
        "93c8b4a37c5996c76e57d5f3f065fb8b7cf1c19067011eff2293fd2a94ce274a",
    ),
    PublicFile(
        "HIV.csv",
        "molecules",
        (f"{_SAMOJU}/HIV.csv", f"{_CAPFREDDY}/filtered/hiv.csv", f"{_DEEPCHEM_STORE}/HIV.csv"),
        "b72f0cf00cd1f45ae5c415f21aef10e69187e30dd24029ddb345fbca35b0d798",
        _MOLECULENET,
        without_blank_lines,
    ),
    PublicFile(
        "musk2.csv",
        "mil",
        (f"{_MIL}/musk2.csv",),
        "14040c8891369392f87f4ce8969a20657e615e40e042f02d1a2fe2cabab01717",
        "Musk, version 2 (Chapman and Jain, UCI, 1994), CC BY 4.0",
    ),
    PublicFile(
        "fox.mat",
        "mil",
        (f"{_MILSURVEY}/FoxElephantTiger/fte.zip", f"{_SMILES}/fox.mat"),
        "39ee635d3b9614d9483048acd13aee69175a03a884193e9e0a5ad5ead9af0a8b",
        "Fox (Andrews, Tsochantaridis and Hofmann, 2002), no licence stated",
        partial(unpack, member="fox.mat"),
        "52ffad88ca54ad986faa8edeb06c617c1d7766045c1c0763270d6651b38be2a7",
    ),
    PublicFile(
        "adult.data",
        "groups",
        (
            f"{_UCI}/ml/machine-learning-databases/adult/adult.data",
            f"{_UCI}/static/public/2/adult.zip",
            f"{_SHAP}/adult.data",
        ),
        "5b00264637dbfec36bdeaab5676b0b309ff9eb788d63554ca0a249491c86603d",
        _ADULT,
        partial(with_adult_ends, member="adult.data"),
    ),
    PublicFile(
        "adult.test",
        "groups",
        (
            f"{_UCI}/ml/machine-learning-databases/adult/adult.test",
            f"{_UCI}/static/public/2/adult.zip",
            f"{_FAIRNESS}/adult.test",
        ),
        "a2a9044bc167a35b2361efbabec64e89d69ce82d9790d2980119aac5fd7e9c05",
        _ADULT,
        partial(with_adult_ends, member="adult.test", first="|1x3 Cross validator"),
    ),
    PublicFile(
        "compas-scores-two-years.csv",
        "groups",
        (f"{_PROPUBLICA}/compas-scores-two-years.csv",),
        "a5e5c34bfd2d1f065bb12a44c0323421baf74b98b97d585915a0c2e1513ecaba",
        "COMPAS (ProPublica, 2016), no licence stated",
        partial(without_columns, columns=_COMPAS_PERSONS),
    ),
    PublicFile(
        "colon_224.tar",
        "lc25000",
        (_COLON,),
        "664e4f4d87c01645af2e935021d5fdc9c4342792f25b9418e103d3b6cb88add7",
        _LC25000,
        partial(collect_images, inside="dataset", classes={"colon_aca": "colonca", "colon_n": "colonn"}, count=1000),
    ),
    PublicFile(
        "lung_224.tar",
        "lc25000",
        (_LUNG,),
        "c6799537c492d8d1e976338356ef0e16f4b95bab9e5385f666eaae5b4f7ec6fc",
        _LC25000,
        partial(
            collect_images, inside="lung_image_sets", classes={"lung_aca": "lungaca", "lung_scc": "lungscc"}, count=1000
        ),
    ),
    *(
        PublicFile(
            f"{name}_source_tiles.csv",
            "lc25000",
            (f"{_TILES}/{name}/UNI/resize_only/final_clusters.csv",),
            checksum,
            _LC25000_TILES,
        )
        for name, checksum in (
            ("colon_aca", "ba4ee1f8d996bfd06a6213c880d98b1e6a0048d5b9b72cb3180a0e4285b3cc4a"),
            ("colon_n", "c842ca3506ce77824d89f6029c61c0c124882e11aba286c73f40092822640105"),
            ("lung_aca", "7c7cab2b70368440e31644146804cc891eeb4700eb91a3ccb0c81bb485b18448"),
            ("lung_scc", "a270102184674d8c8e0d8717befd2525df2002fea1b300c30b503843f4f05d14"),
        )
    ),
)

PUBLIC_FILES = {entry.name: entry for entry in _FILES}
