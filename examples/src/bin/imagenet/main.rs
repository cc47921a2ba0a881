//! proto: speed
#[path="model.rs"] mod model;
use burn::prelude::*;
use burn::optim::{SgdConfig, GradientsParams, momentum::MomentumConfig};
use burn::nn::loss::CrossEntropyLossConfig;
fn main() {
    let a: Vec<usize> = std::env::args().skip(1).map(|s| s.parse().unwrap()).collect();
    let (size, width, bs) = (a[0], a[1], a[2]);
    let device = Device::flex().autodiff();
    let mut m = model::ResNet18Config { classes: 10, width, size }.init(&device);
    let mut opt = SgdConfig::new().with_momentum(Some(MomentumConfig::new().with_momentum(0.9).with_nesterov(true))).init();
    let loss = CrossEntropyLossConfig::new().with_smoothing(Some(0.1)).init(&device);
    let x = Tensor::<4>::random([bs, 3, size, size], burn::tensor::Distribution::Default, &device);
    let y = Tensor::<1, Int>::from_data(TensorData::new((0..bs as i64).map(|i| i % 10).collect::<Vec<_>>(), [bs]), (&device, burn::tensor::DType::I64));
    for i in 0..4 {
        let t = std::time::Instant::now();
        let out = m.forward(x.clone());
        let f = t.elapsed();
        let l = loss.forward(out, y.clone());
        let lv: f32 = l.clone().into_scalar();
        let g = l.backward();
        let b = t.elapsed();
        let g = GradientsParams::from_grads(g, &m);
        m = opt.step(0.05, m, g);
        println!("{i} loss {lv:.3} fwd {f:?} fwd+bwd {b:?} all {:?} {:.0} img/s", t.elapsed(), bs as f64 / t.elapsed().as_secs_f64());
    }
}
