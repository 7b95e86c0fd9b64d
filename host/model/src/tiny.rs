//! Tiny seeded models for tests of every crate: random weights, real files.
//!
//! A [`TinyModel`] is written as a GGUF file (with a byte-level vocabulary and a ChatML template)
//! and read back through the loader, so a test that uses one covers that path too.

use std::sync::Arc;

use tenon_backend::{DType, Program};

use crate::gguf::{Gguf, GgufWriter, WriteValue};
use crate::open::open_gguf;
use crate::tiny_vocab;

/// Which family to imitate.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[allow(missing_docs)]
pub enum TinyArch {
    Llama,
    Qwen2,
    Qwen3,
    Gemma3,
}

impl TinyArch {
    /// All of them.
    pub const ALL: [TinyArch; 4] =
        [TinyArch::Llama, TinyArch::Qwen2, TinyArch::Qwen3, TinyArch::Gemma3];

    /// `general.architecture`.
    pub fn name(self) -> &'static str {
        match self {
            TinyArch::Llama => "llama",
            TinyArch::Qwen2 => "qwen2",
            TinyArch::Qwen3 => "qwen3",
            TinyArch::Gemma3 => "gemma3",
        }
    }
}

/// Sizes and seed of a tiny model. The same value always gives the same bytes.
#[derive(Debug, Clone, Copy)]
pub struct TinyModel {
    /// The family.
    pub arch: TinyArch,
    /// Of all weights.
    pub seed: u64,
    /// Of all matrices; K-quants need widths that are multiples of 256.
    pub dtype: DType,
    /// Layers.
    pub num_layers: usize,
    /// Width of the residual.
    pub hidden: usize,
    /// Width of the MLP.
    pub ffn: usize,
    /// Query heads.
    pub num_heads: usize,
    /// Key and value heads.
    pub num_kv_heads: usize,
    /// Width of a head.
    pub head_dim: usize,
    /// Longest sequence.
    pub max_position: usize,
    /// Of Gemma's windowed layers (every second one).
    pub window: u32,
}

impl TinyModel {
    /// Entries of the vocabulary: 256 bytes, merges, specials.
    pub const VOCAB: usize = tiny_vocab::VOCAB;
    /// `<|endoftext|>`.
    pub const EOS: u32 = tiny_vocab::EOS;
    /// `<|im_end|>`.
    pub const IM_END: u32 = tiny_vocab::IM_END;

    /// Two layers of width 64 in F32.
    pub fn new(arch: TinyArch, seed: u64) -> Self {
        TinyModel {
            arch,
            seed,
            dtype: DType::F32,
            num_layers: 2,
            hidden: 64,
            ffn: 160,
            num_heads: 4,
            num_kv_heads: 2,
            head_dim: if arch == TinyArch::Gemma3 { 32 } else { 16 },
            max_position: 2048,
            window: 8,
        }
    }

    /// The same family with matrices of another type; widths grow to 256 where K-quants need it.
    pub fn with_dtype(self, dtype: DType) -> Self {
        let wide = dtype.block_len() == 256;
        let (hidden, ffn) = if wide { (256, 512) } else { (self.hidden, self.ffn) };
        let num_heads = if wide { 256 / self.head_dim } else { self.num_heads };
        TinyModel { dtype, hidden, ffn, num_heads, ..self }
    }

    /// The model as a GGUF file.
    pub fn gguf(&self) -> Vec<u8> {
        let mut writer = GgufWriter::default();
        self.write_config(&mut writer);
        tiny_vocab::write(&mut writer);
        self.write_weights(&mut writer);
        writer.finish()
    }

    /// The model, lowered.
    pub fn program(&self) -> Program {
        let gguf = Gguf::from_bytes("tiny.gguf", Arc::new(self.gguf()))
            .expect("a file of our own writer is valid");
        open_gguf(gguf, None).expect("a tiny model is complete").program
    }

    fn write_config(&self, writer: &mut GgufWriter) {
        let arch = self.arch.name();
        writer.key("general.architecture", WriteValue::Text(arch.into()));
        writer.key("general.name", WriteValue::Text(format!("tiny {arch}")));
        let mut numbers = vec![
            ("block_count", self.num_layers),
            ("context_length", self.max_position),
            ("embedding_length", self.hidden),
            ("feed_forward_length", self.ffn),
            ("attention.head_count", self.num_heads),
            ("attention.head_count_kv", self.num_kv_heads),
            ("attention.key_length", self.head_dim),
            ("attention.value_length", self.head_dim),
            ("vocab_size", Self::VOCAB),
        ];
        if self.arch == TinyArch::Gemma3 {
            numbers.push(("attention.sliding_window", self.window as usize));
            numbers.push(("attention.sliding_window_pattern", 2));
        }
        for (key, value) in numbers {
            writer.key(&format!("{arch}.{key}"), WriteValue::U32(value as u32));
        }
        let eps = format!("{arch}.attention.layer_norm_rms_epsilon");
        writer.key(&eps, WriteValue::F32(1e-6));
        writer.key(&format!("{arch}.rope.freq_base"), WriteValue::F32(10_000.0));
    }

    fn write_weights(&self, writer: &mut GgufWriter) {
        let mut random = Random(self.seed ^ 0x7e40_0000);
        let (q, kv) = (self.num_heads * self.head_dim, self.num_kv_heads * self.head_dim);
        let (hidden, ffn, dtype) = (self.hidden, self.ffn, self.dtype);
        let mut matrix = |name: &str, rows: usize, cols: usize, gain: f32| {
            let std = gain / (cols as f32).sqrt();
            writer.tensor(name, &[rows, cols], dtype, &random.matrix(dtype, rows, cols, std));
        };
        // Embeddings of about unit variance, so that a norm's epsilon does not matter.
        matrix("token_embd.weight", Self::VOCAB, hidden, (hidden as f32).sqrt());
        if self.arch != TinyArch::Gemma3 {
            matrix("output.weight", Self::VOCAB, hidden, 2.0);
        }
        for layer in 0..self.num_layers {
            let name = |part: &str| format!("blk.{layer}.{part}.weight");
            matrix(&name("attn_q"), q, hidden, 1.5);
            matrix(&name("attn_k"), kv, hidden, 1.5);
            matrix(&name("attn_v"), kv, hidden, 1.0);
            matrix(&name("attn_output"), hidden, q, 1.0);
            matrix(&name("ffn_gate"), ffn, hidden, 1.5);
            matrix(&name("ffn_up"), ffn, hidden, 1.0);
            matrix(&name("ffn_down"), hidden, ffn, 1.5);
        }
        self.write_vectors(writer, &mut random);
    }

    fn write_vectors(&self, writer: &mut GgufWriter, random: &mut Random) {
        let (q, kv) = (self.num_heads * self.head_dim, self.num_kv_heads * self.head_dim);
        let mut vector = |name: &str, len: usize, mean: f32| {
            let bytes: Vec<u8> =
                (0..len).flat_map(|_| (mean + 0.2 * random.normal()).to_le_bytes()).collect();
            writer.tensor(name, &[len], DType::F32, &bytes);
        };
        vector("output_norm.weight", self.hidden, 1.0);
        for layer in 0..self.num_layers {
            let name = |part: &str| format!("blk.{layer}.{part}");
            vector(&name("attn_norm.weight"), self.hidden, 1.0);
            vector(&name("ffn_norm.weight"), self.hidden, 1.0);
            if self.arch == TinyArch::Qwen2 {
                vector(&name("attn_q.bias"), q, 0.0);
                vector(&name("attn_k.bias"), kv, 0.0);
                vector(&name("attn_v.bias"), kv, 0.0);
            }
            if matches!(self.arch, TinyArch::Qwen3 | TinyArch::Gemma3) {
                vector(&name("attn_q_norm.weight"), self.head_dim, 1.0);
                vector(&name("attn_k_norm.weight"), self.head_dim, 1.0);
            }
            if self.arch == TinyArch::Gemma3 {
                vector(&name("post_attention_norm.weight"), self.hidden, 1.0);
                vector(&name("post_ffw_norm.weight"), self.hidden, 1.0);
            }
        }
    }
}

/// SplitMix64 (Steele et al., 2014): a few lines, the same on every machine.
#[derive(Debug, Clone)]
pub struct Random(pub u64);

impl Random {
    /// The next 64 bits.
    pub fn bits(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// Below `n`, which is not 0.
    pub fn below(&mut self, n: u64) -> u64 {
        self.bits() % n
    }

    /// About normal: the sum of four uniform values, scaled to unit variance.
    pub fn normal(&mut self) -> f32 {
        let bits = self.bits();
        let sum: u64 = (0..4).map(|i| bits >> (16 * i) & 0xffff).sum();
        (sum as f32 / 65_536.0 - 2.0) * 3f32.sqrt()
    }

    /// An encoded matrix whose elements have about the standard deviation `std`.
    pub fn matrix(&mut self, dtype: DType, rows: usize, cols: usize, std: f32) -> Vec<u8> {
        let len = rows * cols;
        match dtype {
            DType::F32 => (0..len).flat_map(|_| (std * self.normal()).to_le_bytes()).collect(),
            DType::F16 => (0..len)
                .flat_map(|_| half::f16::from_f32(std * self.normal()).to_le_bytes())
                .collect(),
            DType::BF16 => (0..len)
                .flat_map(|_| half::bf16::from_f32(std * self.normal()).to_le_bytes())
                .collect(),
            _ => (0..len / dtype.block_len()).flat_map(|_| self.block(dtype, std)).collect(),
        }
    }

    /// A quantized block: random levels under scales that give `std` and about zero mean.
    fn block(&mut self, dtype: DType, std: f32) -> Vec<u8> {
        let mut block: Vec<u8> = (0..dtype.block_bytes()).map(|_| self.bits() as u8).collect();
        // Byte offset of each f16 scale, and what to store there in units of `std`: levels are
        // uniform, so 16 of them deviate by 4.6 steps, 32 by 9.2, 64 by 18.5, 256 by 74.
        let scales: &[(usize, f32)] = match dtype {
            DType::Q4_0 => &[(0, 1.0 / 4.6)],
            DType::Q4_1 => &[(0, 1.0 / 4.6), (2, -7.5 / 4.6)],
            DType::Q5_0 => &[(0, 1.0 / 9.2)],
            DType::Q5_1 => &[(0, 1.0 / 9.2), (2, -15.5 / 9.2)],
            DType::Q8_0 => &[(0, 1.0 / 74.0)],
            // Six-bit group scales and minima, both 32 on average.
            DType::Q4K => &[(0, 1.0 / 240.0), (2, 7.5 / 240.0)],
            DType::Q5K => &[(0, 1.0 / 480.0), (2, 15.5 / 480.0)],
            DType::Q6K => &[(208, 1.0 / 1370.0)],
            DType::F32 | DType::F16 | DType::BF16 => &[],
        };
        for &(at, unit) in scales {
            block[at..at + 2].copy_from_slice(&half::f16::from_f32(unit * std).to_le_bytes());
        }
        block
    }
}
