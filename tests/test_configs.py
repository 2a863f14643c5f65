"""Every shipped config: parses, builds without data, trains and predicts on random images, and keeps its promises."""

from __future__ import annotations

import copy
import importlib
import re
from pathlib import Path

import numpy as np
import pytest
import torch
import yaml
from backbone_cases import registered_backbones
from mmengine.config import Config
from mmengine.optim import build_optim_wrapper
from mmengine.registry import MODELS, DefaultScope, init_default_scope
from mmengine.structures import InstanceData, PixelData
from torch import nn

from mmvit_plugins.models.backbones.base import HierarchicalBackbone
from mmvit_plugins.models.backbones.context_cluster import ARCHS as CONTEXT_CLUSTER_ARCHS
from mmvit_plugins.models.backbones.efficientvit import ARCHS as EFFICIENTVIT_ARCHS
from mmvit_plugins.models.backbones.flatformer import ARCHS as FLATFORMER_ARCHS
from mmvit_plugins.models.backbones.sparsevit import ARCHS as SPARSEVIT_ARCHS
from mmvit_plugins.models.backbones.stvit import ARCHS

ROOT = Path(__file__).resolve().parent.parent
FOLDER = ROOT / "configs"
CONFIGS = sorted(
    str(p.relative_to(FOLDER)) for p in FOLDER.rglob("*.py") if "_base_" not in p.relative_to(FOLDER).parts
)
TASKS = {name: Config.fromfile(FOLDER / name).default_scope for name in CONFIGS}
SEG = [name for name in CONFIGS if TASKS[name] == "mmseg"]
# One task each. Models, schedules and data of several tasks: test_multitask_configs.py.
SINGLE = [name for name in CONFIGS if not name.startswith("multitask/")]


def kinds() -> dict[tuple[str, ...], str]:
    """One config for each combination of family, host model, backbone, neck and heads; of equal ones one on scenes.

    Sizes and data sets of a kind differ in numbers only, which building checks; training all would take an hour.
    """
    found: dict[tuple[str, ...], str] = {}
    for name in sorted(SINGLE, key=lambda name: ("scenes" not in name, name)):
        model = Config.fromfile(FOLDER / name).model
        parts = ("backbone", "neck", "decode_head", "auxiliary_head", "head", "bbox_head", "roi_head")
        types = [str(part.get("type") if isinstance(part, dict) else part) for part in map(model.get, parts)]
        found.setdefault((Path(name).parts[0], TASKS[name], str(model.get("type")), *types), name)
    return found


# Pixels: small, and enough for one box.
SIDE = dict(mmseg=32, mmdet=64, mmpretrain=32)
# What issue 2 asks for by name.
REQUIRED = """in1k base_in1k large_in1k in1k_384 base_in1k_384 large_in1k_384 upernet_ade20k base_upernet_ade20k
    large_upernet_ade20k fpn_ade20k upernet_cityscapes mask_rcnn_coco mask_rcnn_coco_3x retinanet_coco upernet_scenes
    mask_rcnn_scenes cls_scenes upernet_camvid segformer_mit_b0_camvid""".split()


def load(name: str) -> Config:
    """The config, with its host imported and its scope made the current one."""
    cfg = Config.fromfile(FOLDER / name)
    use_host(cfg.default_scope)
    return cfg


def use_host(scope: str) -> None:
    """Make ``scope`` the current one, as the runner does; skip where the host library cannot be used."""
    if scope == "mmdet":
        pytest.importorskip("mmcv._ext", reason="MMDetection needs mmcv with compiled operators (make build-ops)")
    pytest.importorskip(scope, reason=f"{scope} is not installed")
    importlib.import_module(f"{scope}.registry")
    init_default_scope(scope)


@pytest.fixture(autouse=True)
def no_scope_left_behind() -> None:
    """Other tests do not inherit the scope of these."""
    known = copy.copy(DefaultScope._instance_dict)
    yield
    DefaultScope._instance_dict.clear()
    DefaultScope._instance_dict.update(known)


def backbones(model: nn.Module) -> list[HierarchicalBackbone]:
    return [m for m in model.modules() if isinstance(m, HierarchicalBackbone)]


# --- what a config promises ---------------------------------------------------------------------------------


def test_required_configs_are_there() -> None:
    missing = [name for name in REQUIRED if f"stvit/{name}.py" not in CONFIGS]
    assert not missing


@pytest.mark.parametrize("path", sorted(FOLDER.rglob("*.py")), ids=lambda p: str(p.relative_to(FOLDER)))
def test_bases_are_our_own(path: Path) -> None:
    """No ``mmseg::`` bases (the maintained fork cannot resolve them), none outside configs/, no custom_imports."""
    text = path.read_text()
    code = "\n".join(line.split("#")[0] for line in text.splitlines())
    assert "::" not in code
    assert "custom_imports" not in code
    assert path.read_text().startswith("#"), "the head of a config says what is taken from where"
    match = re.search(r"^_base_ = (\[.*?\]|\".*?\")", code, re.DOTALL | re.MULTILINE)
    for base in re.findall(r"\"(.*?)\"", match.group(1)) if match else []:
        target = (path.parent / base).resolve()
        assert target.is_file() and FOLDER in target.parents


@pytest.mark.parametrize("name", CONFIGS)
def test_survives_dump_and_reload(name: str, tmp_path: Path) -> None:
    cfg = Config.fromfile(FOLDER / name)
    cfg.dump(tmp_path / "dumped.py")
    assert Config.fromfile(tmp_path / "dumped.py").to_dict() == cfg.to_dict()


@pytest.mark.parametrize("name", SINGLE)
def test_runtime_settings(name: str) -> None:
    cfg = Config.fromfile(FOLDER / name)
    assert cfg.auto_scale_lr["enable"] is False
    gpus = 1 if re.search("scenes|camvid|digits", name) else 8
    assert cfg.auto_scale_lr["base_batch_size"] == gpus * cfg.train_dataloader.batch_size
    assert cfg.default_hooks.checkpoint.max_keep_ckpts == 3
    assert cfg.default_hooks.checkpoint.save_best in ("mIoU", "coco/bbox_mAP", "accuracy/top1")
    assert cfg.visualizer.vis_backends == [dict(type="LocalVisBackend")]
    if gpus == 1:
        assert cfg.randomness["seed"] == 0
    loop = cfg.train_cfg
    if "max_iters" in loop:
        assert loop.max_iters % loop.val_interval == 0, "the last iteration is validated"
        assert loop.max_iters % cfg.default_hooks.checkpoint.interval == 0
        assert cfg.param_scheduler[-1]["end"] == loop.max_iters
    elif cfg.param_scheduler and cfg.param_scheduler[-1]["type"] == "MultiStepLR":
        assert cfg.param_scheduler[-1]["end"] == loop.max_epochs


def test_environment_reaches_every_dataset(monkeypatch: pytest.MonkeyPatch) -> None:
    """One variable moves the data of train, val, test and of COCO's annotation file, and one the backend."""
    monkeypatch.setenv("CAMVID_ROOT", "/elsewhere/camvid")
    monkeypatch.setenv("COCO_ROOT", "/elsewhere/coco")
    monkeypatch.setenv("MMVIT_DIST_BACKEND", "gloo")
    for name in ("upernet_camvid", "segformer_mit_b0_camvid"):
        cfg = Config.fromfile(FOLDER / f"stvit/{name}.py")
        roots = {cfg[f"{part}_dataloader"].dataset.data_root for part in ("train", "val", "test")}
        assert roots == {"/elsewhere/camvid"}
        assert cfg.env_cfg.dist_cfg.backend == "gloo"
    cfg = Config.fromfile(FOLDER / "stvit/mask_rcnn_coco_3x.py")
    assert cfg.train_dataloader.dataset.data_root == "/elsewhere/coco/"
    assert cfg.val_evaluator.ann_file == "/elsewhere/coco/annotations/instances_val2017.json"


def test_camvid_configs_differ_in_the_model_only() -> None:
    ours, theirs = (Config.fromfile(FOLDER / f"stvit/{n}_camvid.py").to_dict() for n in ("upernet", "segformer_mit_b0"))
    assert ours.pop("model")["data_preprocessor"] == theirs.pop("model")["data_preprocessor"]
    assert ours == theirs


# --- the models ---------------------------------------------------------------------------------------------


def tiny_batch(cfg: Config, count: int = 2) -> dict:
    """Random images with a sample of the config's task each; no data are read."""
    side = SIDE[cfg.default_scope]
    images = [
        torch.from_numpy(np.random.RandomState(i).randint(0, 256, (3, side, side), np.uint8)) for i in range(count)
    ]
    meta = dict(img_shape=(side, side), ori_shape=(side, side), scale_factor=(1.0, 1.0), img_id=0, img_path="random")
    samples = []
    for i in range(count):
        if cfg.default_scope == "mmseg":
            from mmseg.structures import SegDataSample

            sample = SegDataSample(metainfo=meta)
            classes = cfg.model.decode_head.num_classes
            sample.gt_sem_seg = PixelData(data=torch.arange(side * side).reshape(1, side, side) // 7 % classes)
        elif cfg.default_scope == "mmdet":
            from mmdet.structures import DetDataSample
            from mmdet.structures.mask import BitmapMasks

            sample = DetDataSample(metainfo=meta)
            boxes = torch.tensor([[4.0, 6.0, 40.0, 50.0]])
            mask = np.zeros((1, side, side), np.uint8)
            mask[0, 6:50, 4:40] = 1
            sample.gt_instances = InstanceData(
                bboxes=boxes, labels=torch.tensor([1]), masks=BitmapMasks(mask, side, side)
            )
            sample.ignored_instances = InstanceData(bboxes=torch.zeros(0, 4), labels=torch.zeros(0, dtype=torch.long))
        else:
            from mmpretrain.structures import DataSample

            sample = DataSample(metainfo=meta).set_gt_label(i)
        samples.append(sample)
    if "Pillar" in cfg.model.backbone.type:
        low, high = torch.tensor(cfg.model.backbone.pillars.point_cloud_range).view(2, 3)
        generator = torch.Generator().manual_seed(0)
        images = [low + (high - low) * torch.rand(500, 3, generator=generator) for _ in range(count)]
    return dict(inputs=images, data_samples=samples)


def check_predictions(cfg: Config, samples: list) -> None:
    for sample in samples:
        if cfg.default_scope == "mmseg":
            labels, classes = sample.pred_sem_seg.data, cfg.model.decode_head.num_classes
            assert labels.shape == (1, SIDE["mmseg"], SIDE["mmseg"])
            assert 0 <= labels.min() and labels.max() < classes
            assert torch.isfinite(sample.seg_logits.data).all()
        elif cfg.default_scope == "mmdet":
            assert torch.isfinite(sample.pred_instances.bboxes).all()
            assert torch.isfinite(sample.pred_instances.scores).all()
        else:
            assert sample.pred_score.shape == (cfg.model.head.num_classes,)
            assert sample.pred_score.sum() == pytest.approx(1.0, abs=1e-4)


def shallow(cfg: Config) -> Config:
    """The config with one block in each stage and no padding of crops; widths and heads stay as they are."""
    cfg = copy.deepcopy(cfg)
    if "size" in cfg.model.data_preprocessor:
        cfg.model.data_preprocessor.size = (SIDE["mmseg"], SIDE["mmseg"])
    if "STViT" in cfg.model.backbone.type:
        cfg.model.backbone.arch = ARCHS[cfg.model.backbone.arch] | dict(depths=(1, 1, 1, 1))
    if "ContextCluster" in cfg.model.backbone.type:
        cfg.model.backbone.arch = CONTEXT_CLUSTER_ARCHS[cfg.model.backbone.arch] | dict(depths=(1, 1, 1, 1))
    if "FlatFormer" in cfg.model.backbone.type:
        cfg.model.backbone.arch = FLATFORMER_ARCHS[cfg.model.backbone.arch] | dict(depths=(1, 1, 1, 1))
    if "SparseViT" in cfg.model.backbone.type:
        cfg.model.backbone.arch = SPARSEVIT_ARCHS[cfg.model.backbone.arch] | dict(depths=(1, 1, 1, 1))
        ratios = cfg.model.backbone.get("pruning_ratios", 0.0)
        if not isinstance(ratios, float):
            cfg.model.backbone.pruning_ratios = [r if isinstance(r, float) else r[0] for r in ratios]
    if "EfficientViT" in cfg.model.backbone.type:
        cfg.model.backbone.arch = EFFICIENTVIT_ARCHS[cfg.model.backbone.arch] | dict(depths=(1, 2, 2, 1, 1))
    return cfg


@pytest.mark.parametrize("name", SINGLE)
def test_model_builds(name: str) -> None:
    """As shipped, without data and weight files; the widths of backbone, neck and heads agree."""
    cfg = load(name)
    check_widths(cfg, MODELS.build(cfg.model))


@pytest.mark.parametrize("name", sorted(kinds().values()))
def test_model_trains_and_predicts(name: str) -> None:
    """Decay rules match; losses and predictions on random images are finite, and every parameter has a gradient."""
    cfg = shallow(load(name))
    model = MODELS.build(cfg.model).train()
    check_decay(cfg, model)
    losses, numbers = model.parse_losses(model.forward(**model.data_preprocessor(tiny_batch(cfg), True), mode="loss"))
    assert torch.isfinite(losses) and losses > 0, numbers
    losses.backward()
    unused = [n for n, p in model.named_parameters() if p.requires_grad and p.grad is None]
    assert not unused, "DDP would wait for these"
    model.eval()
    with torch.no_grad():
        data = model.data_preprocessor(tiny_batch(cfg), False)
        check_predictions(cfg, model.forward(**data, mode="predict"))


def check_widths(cfg: Config, model: nn.Module) -> None:
    """in_channels of neck and heads are the backbone's out_channels."""
    names = {b.__name__ for b in registered_backbones().values()}
    assert len(backbones(model)) == (cfg.model.backbone.type.removeprefix("mmvit_plugins.") in names)
    for backbone in backbones(model):
        widths = list(backbone.out_channels)
        necks = cfg.model.get("neck", [])
        necks = list(necks) if isinstance(necks, list) else [necks]
        if necks and necks[0].type.endswith("TokenReductionNeck"):
            assert list(necks[0].in_channels) == widths
            if "output" in necks[0]:
                assert cfg.model.head.in_channels == necks[0].embed_dims
                continue
            del necks[0]  # maps as they were
        if cfg.default_scope == "mmpretrain" and not (necks and "in_channels" in necks[0]):  # none, or pooling
            assert cfg.model.head.in_channels == widths[-1]
            continue
        if cfg.default_scope == "mmpretrain":
            assert necks[0].in_channels == widths[-1]
            assert cfg.model.head.in_channels == necks[0].get("out_channels", widths[-1])
            continue
        consumer = necks[0] if necks else cfg.model.decode_head
        assert list(consumer.in_channels) == widths
        if "auxiliary_head" in cfg.model:
            assert cfg.model.auxiliary_head.in_channels == widths[cfg.model.auxiliary_head.in_index]


def check_decay(cfg: Config, model: nn.Module) -> None:
    """Each custom key matches a parameter, and a config that spares norms spares every one of them."""
    rules = cfg.optim_wrapper.get("paramwise_cfg") or {}
    names = [name for name, _ in model.named_parameters()]
    for key in rules.get("custom_keys", {}):
        assert any(key in name for name in names), f"custom key {key!r} matches no parameter"
    optimizer = build_optim_wrapper(model, copy.deepcopy(cfg.optim_wrapper)).optimizer
    decay = {id(p): group["weight_decay"] for group in optimizer.param_groups for p in group["params"]}
    assert len(decay) == sum(p.requires_grad for p in model.parameters())
    norms = (nn.modules.batchnorm._BatchNorm, nn.LayerNorm, nn.GroupNorm)
    for module in model.modules() if "norm_decay_mult" in rules else ():
        if isinstance(module, norms):
            assert {decay[id(p)] for p in module.parameters()} == {0.0}
    for name, parameter in model.named_parameters() if rules else ():
        assert not name.endswith((".gamma1", ".gamma2")) or decay[id(parameter)] == 0.0, "layer scale"


@pytest.mark.parametrize(
    ("name", "changes"),
    [
        ("base_upernet_ade20k", {"arch", "checkpoint", "in_channels"}),
        ("large_upernet_ade20k", {"arch", "checkpoint", "in_channels"}),
        ("base_in1k", {"arch", "drop_path_rate", "in_channels"}),
        ("large_in1k", {"arch", "drop_path_rate", "in_channels"}),
        ("base_in1k_384", {"arch", "in_channels", "load_from"}),
        ("large_in1k_384", {"arch", "in_channels", "load_from"}),
        ("upernet_scenes_compile", {"compile", "backend"}),
    ],
)
def test_variants_are_small_deltas(name: str, changes: set[str]) -> None:
    """Larger sizes change the architecture and what follows from it, nothing else."""
    text = (FOLDER / f"stvit/{name}.py").read_text()
    keys = set(re.findall(r"(\w+) ?=", "\n".join(line.split("#")[0] for line in text.splitlines())))
    assert keys - {"_base_", "model", "backbone", "neck", "decode_head", "auxiliary_head", "init_cfg"} == changes


@pytest.mark.parametrize(("name", "published"), [("in1k", 25.50), ("base_in1k", 51.69), ("large_in1k", 94.97)])
def test_published_sizes(name: str, published: float) -> None:
    """Million parameters of papers.md, section 1."""
    cfg = load(f"stvit/{name}.py")
    count = sum(p.numel() for p in MODELS.build(cfg.model).parameters()) / 1e6
    assert count == pytest.approx(published, abs=0.01)


# --- the index ----------------------------------------------------------------------------------------------


def test_index_lists_every_config() -> None:
    """mmengine finds ``mmvit_plugins::`` configs through it; each entry names a file and an existing README."""
    index = yaml.safe_load((ROOT / "model-index.yml").read_text())
    assert index["Import"] == sorted(str(p.relative_to(ROOT)) for p in FOLDER.rglob("metafile.yml"))
    listed = []
    for path in index["Import"]:
        meta = yaml.safe_load((ROOT / path).read_text())
        collections = {c["Name"]: c for c in meta["Collections"]}
        assert all((ROOT / c["README"]).is_file() for c in collections.values())
        for model in meta["Models"]:
            assert model["In Collection"] in collections
            assert model["Config"] == str(Path(path).parent / f"{model['Name']}.py")
            listed.append(model["Config"].removeprefix("configs/"))
    assert sorted(listed) == CONFIGS
