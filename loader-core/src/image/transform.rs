//! [`Transform`]: from a file's bytes to a tensor, as data that can be compared, stored and sent.

use serde::{Deserialize, Serialize};

use super::decode::{DECODER, DecodeOptions};
use super::ops::*;
use crate::dataset::Fingerprint;
use crate::field::DType;

/// How an image file becomes a tensor: decoding options, then operations in order.
///
/// It is only a description: [`compile`](Transform::compile) checks it. Operations on pixels come
/// first, then [`to`](Transform::to), then what works on tensors: [`normalize`](Transform::normalize)
/// and [`RandomErasing`]; flips may stand anywhere. Without `to`, the output is `u8`, NCHW.
///
/// ```
/// use loader_core::{DType, Layout, Transform};
///
/// let eval = Transform::new()
///     .resize(256)
///     .center_crop(224)
///     .to(DType::F32, Layout::Nchw)
///     .normalize([0.485, 0.456, 0.406], [0.229, 0.224, 0.225]);
/// assert_eq!(eval, Transform::imagenet_eval(224));
/// assert_eq!(eval.compile()?.field(), (DType::F32, vec![3, 224, 224]));
/// # Ok::<(), loader_core::TransformError>(())
/// ```
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Transform {
    #[serde(default)]
    decode: DecodeOptions,
    ops: Vec<Op>,
}

impl Transform {
    /// No operation yet.
    pub fn new() -> Self {
        Self::default()
    }

    /// Training on ImageNet: [`RandomResizedCrop`], a horizontal flip in half of the cases, `f32`,
    /// NCHW, normalised by ImageNet's mean and standard deviation.
    pub fn imagenet_train(size: u32) -> Self {
        Self::new()
            .random_resized_crop(size)
            .random_horizontal_flip(0.5)
            .to(DType::F32, Layout::Nchw)
            .then(Normalize::imagenet())
    }

    /// Evaluation on ImageNet: the smaller edge to 256/224 of `size`, then the centre, `f32`, NCHW,
    /// normalised as in training.
    pub fn imagenet_eval(size: u32) -> Self {
        let edge = (u64::from(size) * 256 + 112) / 224;
        Self::new()
            .resize(u32::try_from(edge).unwrap_or(u32::MAX))
            .center_crop(size)
            .to(DType::F32, Layout::Nchw)
            .then(Normalize::imagenet())
    }

    /// Appends an operation.
    pub fn then(mut self, op: impl Into<Op>) -> Self {
        self.ops.push(op.into());
        self
    }

    /// Sets the decoding options.
    pub fn decode(mut self, options: DecodeOptions) -> Self {
        self.decode = options;
        self
    }

    /// Appends [`Resize`]: a smaller edge (`256`), or height and width (`(224, 224)`).
    pub fn resize(self, size: impl Into<Target>) -> Self {
        self.then(Resize::new(size))
    }

    /// Appends [`CenterCrop`].
    pub fn center_crop(self, size: impl Into<Extent>) -> Self {
        self.then(CenterCrop::new(size))
    }

    /// Appends [`RandomCrop`] without padding; `then(RandomCrop::new(32).padding(4))` pads.
    pub fn random_crop(self, size: impl Into<Extent>) -> Self {
        self.then(RandomCrop::new(size))
    }

    /// Appends [`RandomResizedCrop`] with the default bounds.
    pub fn random_resized_crop(self, size: impl Into<Extent>) -> Self {
        self.then(RandomResizedCrop::new(size))
    }

    /// Appends [`RandomHorizontalFlip`].
    pub fn random_horizontal_flip(self, p: f64) -> Self {
        self.then(RandomHorizontalFlip { p })
    }

    /// Appends [`RandomVerticalFlip`].
    pub fn random_vertical_flip(self, p: f64) -> Self {
        self.then(RandomVerticalFlip { p })
    }

    /// Appends [`ColorJitter`] by single numbers.
    pub fn color_jitter(self, brightness: f64, contrast: f64, saturation: f64, hue: f64) -> Self {
        self.then(ColorJitter::new(brightness, contrast, saturation, hue))
    }

    /// Appends [`Grayscale`] to 1 or 3 channels.
    pub fn grayscale(self, num_output_channels: u32) -> Self {
        self.then(Grayscale { num_output_channels })
    }

    /// Appends [`To`]: the element type and layout that are written.
    pub fn to(self, dtype: DType, layout: Layout) -> Self {
        self.then(To { dtype, layout })
    }

    /// Appends [`Normalize`].
    pub fn normalize(self, mean: impl Into<Vec<f32>>, std: impl Into<Vec<f32>>) -> Self {
        self.then(Normalize::new(mean, std))
    }

    /// Appends [`RandomErasing`] with the default bounds, filling with 0.
    pub fn random_erasing(self, p: f64) -> Self {
        self.then(RandomErasing::new(p))
    }

    /// The operations in order.
    pub fn ops(&self) -> &[Op] {
        &self.ops
    }

    /// The decoding options.
    pub fn decode_options(&self) -> &DecodeOptions {
        &self.decode
    }

    /// Identifies the transform and the decoder underneath it: equal fingerprints make equal bytes
    /// of equal files.
    pub fn fingerprint(&self) -> Fingerprint {
        self.described().and(Fingerprint::of(DECODER.as_bytes()))
    }

    /// Identifies the transform alone.
    pub(crate) fn described(&self) -> Fingerprint {
        // Field order is fixed and floats are written in their shortest exact form, so this JSON is
        // canonical. What JSON can't hold (NaN becomes null) is refused by `compile`.
        Fingerprint::of(&serde_json::to_vec(self).unwrap_or_default())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn everything() -> Transform {
        Transform::new()
            .decode(DecodeOptions { max_pixels: 1 << 20, ..DecodeOptions::default() })
            .then(Resize::new(300).interpolation(Interpolation::Lanczos).max_size(900))
            .then(RandomCrop::new((200, 240)).padding(4).fill([1, 2, 3]).pad_if_needed(true))
            .random_resized_crop(128)
            .random_horizontal_flip(0.3)
            .random_vertical_flip(0.1)
            .color_jitter(0.4, 0.4, 0.4, 0.1)
            .then(RandomRotation::new(10.0).center(1.5, 2.0).expand(true).fill([1, 2, 3]))
            .then(RandomAffine::new(10.0).translate(0.1, 0.2).scale(0.5, 2.0).shear((1.0, 2.0)))
            .then(GaussianBlur::new(5).sigma(0.2, 0.3))
            .then(RandomPosterize::new(3))
            .then(RandomSolarize::new(99.5))
            .then(RandomAdjustSharpness::new(1.5))
            .then(RandAugment::new(3, 12))
            .then(TrivialAugmentWide::default())
            .then(Custom::new("custom").args(serde_json::json!({"b": 1, "a": [0.1, "x"]})))
            .grayscale(3)
            .center_crop(96)
            .to(DType::F16, Layout::Nhwc)
            .normalize([0.5], [0.25])
            .then(RandomErasing::new(0.25).value(Erase::Random))
    }

    #[test]
    fn survives_serialisation() {
        let json = serde_json::to_string(&everything()).unwrap();
        let back: Transform = serde_json::from_str(&json).unwrap();
        assert_eq!(back, everything());
        assert_eq!(back.fingerprint(), everything().fingerprint());
    }

    #[test]
    fn parameters_left_out_are_torchvision_defaults() {
        let short = r#"{"ops": [
            {"Resize": {"size": {"SmallerEdge": 256}}},
            {"RandomResizedCrop": {"size": {"height": 224, "width": 224}}},
            {"RandomHorizontalFlip": {}}, {"ColorJitter": {}}, {"Grayscale": {}},
            {"RandomRotation": {"degrees": [-5, 5]}}, {"RandomAffine": {"degrees": [-5, 5]}},
            {"GaussianBlur": {"kernel_size": [3, 3]}}, {"RandomAutocontrast": {}},
            {"RandomEqualize": {}}, {"RandomInvert": {}}, {"RandomPosterize": {"bits": 2}},
            {"RandomSolarize": {"threshold": 9}}, {"RandomGrayscale": {}},
            {"RandomAdjustSharpness": {"sharpness_factor": 2}},
            {"RandAugment": {}}, {"TrivialAugmentWide": {}}, {"Custom": {"name": "x"}},
            {"To": {"dtype": "f32"}}, {"RandomErasing": {}}
        ]}"#;
        let long = Transform::new()
            .resize(256)
            .random_resized_crop(224)
            .random_horizontal_flip(0.5)
            .color_jitter(0.0, 0.0, 0.0, 0.0)
            .grayscale(1)
            .then(RandomRotation::new(5.0))
            .then(RandomAffine::new(5.0))
            .then(GaussianBlur { kernel_size: (3, 3), sigma: (0.1, 2.0) })
            .then(RandomAutocontrast { p: 0.5 })
            .then(RandomEqualize { p: 0.5 })
            .then(RandomInvert { p: 0.5 })
            .then(RandomPosterize { bits: 2, p: 0.5 })
            .then(RandomSolarize { threshold: 9.0, p: 0.5 })
            .then(RandomGrayscale { p: 0.1 })
            .then(RandomAdjustSharpness { sharpness_factor: 2.0, p: 0.5 })
            .then(RandAugment {
                num_ops: 2,
                magnitude: 9,
                num_magnitude_bins: 31,
                interpolation: Interpolation::Nearest,
                fill: Fill::All(0),
            })
            .then(TrivialAugmentWide {
                num_magnitude_bins: 31,
                interpolation: Interpolation::Nearest,
                fill: Fill::All(0),
            })
            .then(Custom::new("x"))
            .to(DType::F32, Layout::Nchw)
            .random_erasing(0.5);
        assert_eq!(serde_json::from_str::<Transform>(short).unwrap(), long);
    }

    #[test]
    fn an_unknown_parameter_is_an_error() {
        let typo = r#"{"ops": [{"RandomHorizontalFlip": {"prob": 0.5}}]}"#;
        let error = serde_json::from_str::<Transform>(typo).unwrap_err();
        assert!(error.to_string().contains("prob"), "{error}");
    }

    #[test]
    fn every_change_changes_the_fingerprint() {
        let mut seen = vec![
            everything(),
            everything().grayscale(1),
            everything().then(Custom::new("custom")),
            everything().then(Custom::new("custom").args(1)),
            everything().then(Custom::new("other").args(1)),
            everything().decode(DecodeOptions::default()),
            Transform::imagenet_train(224),
            Transform::imagenet_train(192),
            Transform::imagenet_eval(224),
            Transform::new(),
        ];
        let n = seen.len();
        seen.sort_by_key(|t| t.fingerprint().0);
        seen.dedup_by_key(|t| t.fingerprint());
        assert_eq!(seen.len(), n);
    }

    /// Torchvision's recipes resize to 256 for 224, 232 for 203 and so on in proportion.
    #[test]
    fn eval_edge_keeps_the_proportion() {
        for (size, edge) in [(224, 256), (192, 219), (112, 128), (1, 1)] {
            let ops = Transform::imagenet_eval(size);
            assert_eq!(ops.ops()[0], Op::Resize(Resize::new(edge)), "{size}");
        }
    }
}
