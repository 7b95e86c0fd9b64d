//! Which layers share a block table, and which share memory: the KV cache of models that mix full
//! attention with sliding windows.
//!
//! Layers of one kind form groups of equal size. All groups draw blocks from one pool: layer `i`
//! of every group lives in physical buffer `i`, and a block belongs to one group at a time. So a
//! windowed group gives back the blocks that its window has left, and any group can use them.
//! Backends, the engine and whoever sizes the pool read the layout from here.

use crate::program::{KvLayer, Program};

/// In a windowed group's block table: the window has passed this block; it is never read.
pub const NO_BLOCK: u32 = u32::MAX;

/// Layers that share a block table.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct KvGroup {
    /// Tokens that its layers see, themselves included; none: all.
    pub window: Option<u32>,
}

/// Where a layer's keys and values live.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LayerPlace {
    /// Index into [`KvLayout::groups`]: which block table.
    pub group: usize,
    /// Which physical buffer, below [`KvLayout::num_buffers`].
    pub buffer: usize,
}

/// The KV cache of a program.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct KvLayout {
    /// At least one.
    pub groups: Vec<KvGroup>,
    /// Physical buffers, each of `num_blocks * block_size` slots.
    pub num_buffers: usize,
    /// `[num_layers]`
    pub layers: Vec<LayerPlace>,
}

impl KvLayout {
    /// One group over all layers, nothing given back before the sequence ends.
    pub fn uniform(num_layers: usize) -> Self {
        KvLayout {
            groups: vec![KvGroup { window: None }],
            num_buffers: num_layers,
            layers: (0..num_layers).map(|buffer| LayerPlace { group: 0, buffer }).collect(),
        }
    }

    /// Groups by window. Falls back to [`KvLayout::uniform`] where layers differ in shape (their
    /// blocks would differ in bytes) or none has a window.
    fn grouped(layers: &[KvLayer]) -> Self {
        let shape = |l: &KvLayer| (l.num_kv_heads, l.head_dim);
        let is_uniform = layers.windows(2).all(|pair| shape(&pair[0]) == shape(&pair[1]));
        if !is_uniform || layers.iter().all(|l| l.window.is_none()) {
            return KvLayout::uniform(layers.len());
        }
        let mut windows: Vec<Option<u32>> = layers.iter().map(|l| l.window).collect();
        windows.sort_unstable();
        windows.dedup();
        let layers_of = |w: Option<u32>| (0..layers.len()).filter(move |&i| layers[i].window == w);
        // Every group is padded to this size: the smallest kind wastes nothing.
        let size = windows.iter().map(|&w| layers_of(w).count()).min().unwrap_or(1);
        let mut layout = KvLayout { groups: Vec::new(), num_buffers: size, layers: Vec::new() };
        layout.layers.resize(layers.len(), LayerPlace { group: 0, buffer: 0 });
        for window in windows {
            let of_kind: Vec<usize> = layers_of(window).collect();
            for chunk in of_kind.chunks(size) {
                let group = layout.groups.len();
                layout.groups.push(KvGroup { window });
                for (buffer, &layer) in chunk.iter().enumerate() {
                    layout.layers[layer] = LayerPlace { group, buffer };
                }
            }
        }
        layout
    }
}

impl Program {
    /// How the KV cache is laid out; `hybrid`: windowed layers get block tables of their own.
    pub fn kv_layout(&self, hybrid: bool) -> KvLayout {
        match hybrid {
            true => KvLayout::grouped(&self.kv_layers),
            false => KvLayout::uniform(self.kv_layers.len()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn layers(windows: &[Option<u32>]) -> Vec<KvLayer> {
        let layer = |&window| KvLayer { num_kv_heads: 1, head_dim: 8, window };
        windows.iter().map(layer).collect()
    }

    #[test]
    fn gemma_has_five_windowed_groups_and_a_full_one() {
        let windows: Vec<_> = (0..18).map(|i| if i % 6 == 5 { None } else { Some(512) }).collect();
        let layout = KvLayout::grouped(&layers(&windows));
        assert_eq!(layout.num_buffers, 3);
        let full: Vec<_> = layout.groups.iter().map(|g| g.window.is_none()).collect();
        assert_eq!(full, [true, false, false, false, false, false]);
        let mut seen = std::collections::HashSet::new();
        for (place, window) in layout.layers.iter().zip(windows) {
            assert!(seen.insert((place.group, place.buffer)), "two layers in one place");
            assert_eq!(layout.groups[place.group].window, window);
            assert!(place.buffer < 3);
        }
    }

    #[test]
    fn one_kind_is_one_group() {
        assert_eq!(KvLayout::grouped(&layers(&[None, None])), KvLayout::uniform(2));
        let windowed = KvLayout::grouped(&layers(&[Some(4), Some(4)]));
        assert_eq!(windowed.groups, [KvGroup { window: Some(4) }]);
        let mut mixed = layers(&[None, Some(4)]);
        mixed[1].head_dim = 16;
        assert_eq!(KvLayout::grouped(&mixed), KvLayout::uniform(2));
    }
}
