//! Operations on each element alone.

use tenon_backend::Activation;

/// `residual += input`
pub fn add(residual: &mut [f32], input: &[f32]) {
    residual.iter_mut().zip(input).for_each(|(r, x)| *r += x);
}

/// `gate = act(gate) * up`
pub fn gated(gate: &mut [f32], up: &[f32], act: Activation) {
    for (g, u) in gate.iter_mut().zip(up) {
        *g = activate(*g, act) * u;
    }
}

/// `x = cap * tanh(x / cap)` for each element.
pub fn softcap(x: &mut [f32], cap: f32) {
    x.iter_mut().for_each(|x| *x = capped(*x, cap));
}

/// `cap * tanh(x / cap)`
pub fn capped(x: f32, cap: f32) -> f32 {
    cap * (x / cap).tanh()
}

fn activate(x: f32, act: Activation) -> f32 {
    match act {
        Activation::Silu => x / (1.0 + (-x).exp()),
        Activation::GeluTanh => {
            let inner = (2.0 / std::f32::consts::PI).sqrt() * (x + 0.044715 * x * x * x);
            0.5 * x * (1.0 + inner.tanh())
        }
    }
}
