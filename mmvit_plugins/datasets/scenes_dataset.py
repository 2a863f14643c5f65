"""Datasets of built-in scenes in the formats of the host libraries.

They build on mmengine's BaseDataset, need no files and no host library to be imported, and give the same samples in
every process. See docs/scenes.md.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
from mmengine.dataset import BaseDataset

from ..registry import DATASETS
from .scenes import CLASSES, PALETTE, SHAPES, Scene, SceneCache, image_uri, render_scene
from .scenes.sampling import sample_main_shape
from .scenes.scene import check_request

__all__ = ["ScenesClsDataset", "ScenesDataset", "ScenesDetDataset", "ScenesMultiTaskDataset", "ScenesSegDataset"]

_OBJECT_PALETTE = PALETTE[len(CLASSES) - len(SHAPES) :]


class ScenesDataset(BaseDataset):
    """What the datasets of scenes share: which scenes there are and how one is rendered. Use one of the subclasses.

    Args:
        split: 'train', 'val' or 'test'. Splits share no scene, whatever the seed.
        num_scenes: number of scenes.
        size: height and width in pixels. The same scenes appear at any size.
        seed: 0 to 2^32 - 1; another seed gives other scenes.
        objects: fewest and most objects in a scene.
        cache: True (or 'memory') keeps rendered scenes in memory, 4 bytes per pixel, shared by forked data loader
            workers; False renders a scene each time.
        metainfo: other meta information; ``classes`` may name some of the classes in any order.
        filter_cfg: see the subclasses.
        indices: a number n for the first n samples, or the numbers of samples to keep.
        serialize_data: as in mmengine.
        pipeline: transforms; begin with ``dict(type='mmvit_plugins.LoadScene')``.
        test_mode: as in mmengine.
        lazy_init: as in mmengine.
        max_refetch: as in mmengine.

    Raises:
        ValueError: for an illegal argument, with the legal values.
    """

    LAYERS: tuple[str, ...] = ()
    FILTERS: tuple[str, ...] = ()

    def __init__(
        self,
        split: str = "train",
        num_scenes: int = 1000,
        size: tuple[int, int] = (128, 128),
        seed: int = 0,
        objects: tuple[int, int] = (3, 6),
        cache: bool | str = False,
        metainfo: dict | None = None,
        filter_cfg: dict | None = None,
        indices: int | Sequence[int] | None = None,
        serialize_data: bool = True,
        pipeline: Sequence[dict | Callable] = (),
        test_mode: bool = False,
        lazy_init: bool = False,
        max_refetch: int = 1000,
    ) -> None:
        self.seed, self.split, _, self.size, self.objects = check_request(seed, split, 0, size, objects)
        if not 1 <= num_scenes < 2**32:
            raise ValueError(f"num_scenes must be at least 1, but got {num_scenes}.")
        if cache not in (True, False, "memory"):
            raise ValueError(f"cache must be True, False or 'memory', but got {cache!r}.")
        unknown = [key for key in filter_cfg or () if key not in self.FILTERS]
        if unknown:
            legal = ", ".join(self.FILTERS) or "none"
            raise ValueError(f"{type(self).__name__} has no filter {unknown[0]!r}; legal keys of filter_cfg: {legal}.")
        self.num_scenes = int(num_scenes)
        self.cache = SceneCache(self.num_scenes, self.size) if cache else None
        super().__init__(
            metainfo=metainfo,
            filter_cfg=filter_cfg,
            indices=indices,
            serialize_data=serialize_data,
            pipeline=list(pipeline),
            test_mode=test_mode,
            lazy_init=lazy_init,
            max_refetch=max_refetch,
        )

    def _load_metainfo(self, metainfo: dict | None = None) -> dict:
        """Meta information with the palette reduced to the classes chosen."""
        loaded = super()._load_metainfo(metainfo)
        known = self.METAINFO["classes"]
        chosen = tuple(loaded["classes"])
        unknown = [name for name in chosen if name not in known]
        if unknown or len(set(chosen)) != len(chosen):
            raise ValueError(f"classes must be different names out of {', '.join(known)}, but got {chosen}.")
        if metainfo is None or "palette" not in metainfo:
            loaded["palette"] = [self.METAINFO["palette"][known.index(name)] for name in chosen]
        loaded["classes"] = chosen
        return loaded

    @property
    def class_map(self) -> dict[int, int] | None:
        """New label of each known class that was chosen; None when the classes are the usual ones."""
        known, chosen = self.METAINFO["classes"], self._metainfo["classes"]
        return None if chosen == known else {known.index(name): label for label, name in enumerate(chosen)}

    def load_data_list(self) -> list[dict]:
        """One entry per scene: its address, number and size. Nothing is rendered yet."""
        height, width = self.size
        return [
            dict(
                img_path=image_uri(self.seed, self.split, index, self.size, self.objects),
                img_id=index,
                height=height,
                width=width,
            )
            for index in range(self.num_scenes)
        ]

    def filter_data(self) -> list[dict]:
        """The samples that the classes and ``filter_cfg`` leave.

        Raises:
            ValueError: when there are none, on which mmengine would fail with a message about concatenation.
        """
        kept = self._select(self.data_list)
        if not kept:
            raise ValueError(
                f"None of the {self.num_scenes} scenes of size {self.size} is left for the classes "
                f"{', '.join(self._metainfo['classes'])} and filter_cfg={self.filter_cfg}: use more, or filter less."
            )
        return kept

    def _select(self, data_list: list[dict]) -> list[dict]:
        return data_list

    def scene(self, idx: int) -> Scene:
        """The rendered scene of a sample."""
        return self._render(self.get_data_info(idx)["img_id"])

    def _render(self, index: int) -> Scene:
        if self.cache is not None:
            return self.cache.get(index, self.seed, self.split, index, self.objects)
        return render_scene(self.seed, self.split, index, self.size, self.objects)

    def prepare_data(self, idx: int) -> dict | None:
        """A sample after the pipeline; the pipeline receives the scene under the key ``scene``."""
        info = self.get_data_info(idx)
        self._add_scene(info, self._render(info["img_id"]))
        return self.pipeline(info)

    def _add_scene(self, info: dict, scene: Scene) -> None:
        info["scene"], info["scene_layers"] = scene, self.LAYERS


@DATASETS.register_module()
class ScenesClsDataset(ScenesDataset):
    """Scenes for MMPretrain: the class is the shape of the main object.

    Arguments are those of :class:`ScenesDataset`. With ``metainfo=dict(classes=...)`` only scenes of these classes
    remain, so there are fewer than ``num_scenes``.
    """

    METAINFO = dict(classes=SHAPES, palette=_OBJECT_PALETTE)
    LAYERS = ("label",)

    def load_data_list(self) -> list[dict]:
        """As in the base class, with ``gt_label``."""
        mapping = self.class_map
        kept = []
        for info in super().load_data_list():
            label = SHAPES.index(sample_main_shape(self.seed, self.split, info["img_id"]))
            if mapping is None or label in mapping:
                kept.append(info | {"gt_label": label if mapping is None else mapping[label]})
        return kept

    def get_cat_ids(self, idx: int) -> list[int]:
        """The label of a sample, as a list of one."""
        return [int(self.get_data_info(idx)["gt_label"])]

    def get_gt_labels(self) -> np.ndarray:
        """Labels of all samples, int64 (len(self),)."""
        return np.array([self.get_data_info(idx)["gt_label"] for idx in range(len(self))], dtype=np.int64)


@DATASETS.register_module()
class ScenesDetDataset(ScenesDataset):
    """Scenes for MMDetection: boxes and masks of the visible objects.

    Samples carry ``instances`` in MMDetection's form (with run-length masks). Put 'instances' among the ``meta_keys``
    of ``PackDetInputs`` and CocoMetric works without an annotation file.

    Arguments are those of :class:`ScenesDataset`; ``filter_cfg`` understands ``filter_empty_gt`` (drops samples
    without an object, which renders every scene once) and ``min_size`` (drops images with a shorter side below it).
    As in MMDetection, filters do nothing in test mode.
    """

    METAINFO = dict(classes=SHAPES, palette=_OBJECT_PALETTE)
    LAYERS = ("instances",)
    FILTERS = ("filter_empty_gt", "min_size")

    def _select(self, data_list: list[dict]) -> list[dict]:
        if self.test_mode or not self.filter_cfg:
            return data_list
        kept = data_list if min(self.size) >= self.filter_cfg.get("min_size", 0) else []
        if self.filter_cfg.get("filter_empty_gt", False):
            kept = [info for info in kept if self._labels(self._render(info["img_id"]))]
        return kept

    def get_cat_ids(self, idx: int) -> list[int]:
        """Labels of the objects of a sample; renders it."""
        return self._labels(self.scene(idx))

    def _labels(self, scene: Scene) -> list[int]:
        mapping = self.class_map
        labels = scene.box_labels.tolist()
        return labels if mapping is None else [mapping[label] for label in labels if label in mapping]

    def _add_scene(self, info: dict, scene: Scene) -> None:
        super()._add_scene(info, scene)
        mapping = self.class_map
        if mapping is not None:
            info["box_label_map"] = mapping
        info["instances"] = _instances(scene, mapping)


def _instances(scene: Scene, mapping: dict[int, int] | None) -> list[dict]:
    """Objects of a scene in MMDetection's annotation form."""
    from pycocotools import mask as run_length  # comes with mmdet, the only user of this form

    instances = []
    for label, box, mask, ignore in zip(
        scene.box_labels.tolist(), scene.boxes.tolist(), scene.masks, scene.ignore_flags.tolist(), strict=True
    ):
        if mapping is not None and label not in mapping:
            continue
        encoded = run_length.encode(np.asfortranarray(mask))
        encoded["counts"] = encoded["counts"].decode()
        label = label if mapping is None else mapping[label]
        instances.append(dict(bbox=box, bbox_label=label, ignore_flag=int(ignore), mask=encoded))
    return instances


@DATASETS.register_module()
class ScenesSegDataset(ScenesDataset):
    """Scenes for MMSegmentation: background, ground and the four shapes.

    Arguments are those of :class:`ScenesDataset`. Classes left out by ``metainfo=dict(classes=...)`` become the ignore
    label 255.
    """

    METAINFO = dict(classes=CLASSES, palette=PALETTE)
    LAYERS = ("seg",)

    def _load_metainfo(self, metainfo: dict | None = None) -> dict:
        """As in the base class, with the two entries that MMSegmentation adds."""
        loaded = super()._load_metainfo(metainfo)
        chosen = loaded["classes"]
        label_map = {old: chosen.index(name) if name in chosen else 255 for old, name in enumerate(CLASSES)}
        return loaded | dict(label_map=None if chosen == CLASSES else label_map, reduce_zero_label=False)

    def load_data_list(self) -> list[dict]:
        """As in the base class, with the entries that MMSegmentation's own loader needs."""
        return [
            info
            | dict(
                seg_map_path=image_uri(self.seed, self.split, info["img_id"], self.size, self.objects, "seg"),
                label_map=self._metainfo["label_map"],
                reduce_zero_label=False,
                seg_fields=[],
            )
            for info in super().load_data_list()
        ]

    def get_cat_ids(self, idx: int) -> list[int]:
        """Classes that a sample shows; renders it."""
        labels = np.unique(self.scene(idx).semantic).tolist()
        label_map = self._metainfo["label_map"]
        return labels if label_map is None else sorted({label_map[v] for v in labels} - {255})


@DATASETS.register_module()
class ScenesMultiTaskDataset(ScenesSegDataset):
    """Scenes with every annotation that needs no host library, for models with several heads.

    The semantic map as in :class:`ScenesSegDataset`, and the label of the main object (``label_classes`` of the meta
    information), depth, normals, occlusion boundaries, saliency, camera matrix and point cloud. The keys are those of
    :class:`~mmvit_plugins.datasets.LoadScene`, whose ``layers`` choose among them.
    """

    METAINFO = dict(classes=CLASSES, palette=PALETTE, label_classes=SHAPES, instance_classes=SHAPES)
    LAYERS = ("label", "seg", "depth", "normals", "boundary", "saliency", "camera", "points")
