//! Dispatch of one operation: takes the buffers it names apart and calls its function.
//!
//! Inputs are cloned where an output may be the same buffer: clarity before speed.

mod attention;
mod elementwise;
mod linear;
mod norm;
mod rope;

use tenon_backend::{BufferId, Op, Program, StepInputs, WeightId, quant::dequantize_row};

use crate::kv::KvCache;

/// Runs `op` over `num_rows` rows.
pub fn run(
    op: &Op,
    program: &Program,
    buffers: &mut [Vec<f32>],
    kv: &mut KvCache,
    inputs: &StepInputs<'_>,
    num_rows: usize,
) {
    let at = |id: BufferId| id.0 as usize;
    let width = |id: BufferId| program.buffers[id.0 as usize];
    let vector = |id: WeightId| row(program, id, 0);
    match op {
        Op::Embed { weight, scale, out } => {
            let rows = inputs.token_ids.iter().map(|&id| row(program, *weight, id as usize));
            buffers[at(*out)] = rows.flatten().map(|x| scale * x).collect();
        }
        Op::RmsNorm { input, weight, eps, out } => {
            let mut x = buffers[at(*input)].clone();
            norm::rms_norm(&mut x, &vector(*weight), *eps);
            buffers[at(*out)] = x;
        }
        Op::AddRmsNorm { residual, input, weight, eps, out } => {
            let input = buffers[at(*input)].clone();
            elementwise::add(&mut buffers[at(*residual)], &input);
            let mut x = buffers[at(*residual)].clone();
            norm::rms_norm(&mut x, &vector(*weight), *eps);
            buffers[at(*out)] = x;
        }
        Op::Add { residual, input } => {
            let input = buffers[at(*input)].clone();
            elementwise::add(&mut buffers[at(*residual)], &input);
        }
        Op::Linear { input, parts } => {
            let input = buffers[at(*input)].clone();
            for part in parts {
                let weight = &program.weights[part.weight.0 as usize];
                let bias = part.bias.map(vector);
                buffers[at(part.out)] = linear::linear(&input, weight, bias.as_deref(), num_rows);
            }
        }
        Op::HeadNorm { buf, weight, head_dim: _, eps } => {
            norm::rms_norm(&mut buffers[at(*buf)], &vector(*weight), *eps);
        }
        Op::Rope { buf, head_dim, rope } => {
            let table = &program.ropes[rope.0 as usize];
            let rows = buffers[at(*buf)].chunks_exact_mut(width(*buf));
            for (row, &position) in rows.zip(inputs.positions) {
                row.chunks_exact_mut(*head_dim)
                    .for_each(|head| rope::rotate(head, table, position));
            }
        }
        Op::Attention { layer, q, k, v, out, num_heads, scale, softcap } => {
            attention::write_kv(kv, *layer, &buffers[at(*k)], &buffers[at(*v)], inputs);
            let scores = attention::Scores { scale: *scale, softcap: *softcap };
            let (layer, q) = (kv.layer(*layer), &buffers[at(*q)]);
            buffers[at(*out)] = attention::attention(layer, q, *num_heads, &scores, inputs);
        }
        Op::GatedMlp { gate, up, out, act } => {
            let mut x = buffers[at(*gate)].clone();
            elementwise::gated(&mut x, &buffers[at(*up)], *act);
            buffers[at(*out)] = x;
        }
        Op::TakeLogitsRows { input, out } => {
            let rows = inputs.logits_rows.iter().map(|&r| r as usize * width(*input));
            let input = &buffers[at(*input)];
            let taken = rows.flat_map(|start| &input[start..start + width(*out)]).copied();
            buffers[at(*out)] = taken.collect();
        }
        Op::Softcap { buf, cap } => elementwise::softcap(&mut buffers[at(*buf)], *cap),
    }
}

// Row `index` of a weight, decoded.
fn row(program: &Program, id: WeightId, index: usize) -> Vec<f32> {
    let weight = &program.weights[id.0 as usize];
    let bytes = weight.dtype.row_bytes(weight.cols);
    let mut out = vec![0.0; weight.cols];
    dequantize_row(weight.dtype, &weight.data[index * bytes..][..bytes], &mut out);
    out
}
