//! One tile of query rows over its partitions: finds the groups of slots, runs the kernels, merges.

use std::ops::Range;

use super::blocks::GroupMut;
use super::cache::{GROUP, GroupPtrs, KvElement, LayerCache, key_dim, padded_dim};
use super::kernels::{
    GROUPS, MAX_ROWS, PARTITION, Queries, RowStats, TileJob, Way, padded_rows, put_query,
    scale_add, scores, softmax_row, softmax_row_rounded, weighted_values,
};
use super::{AttentionOp, Item};
use crate::isa::Isa;
use crate::math::exp;
use crate::memory::Plain;

/// What all tiles of an operation share.
pub struct TileContext<'a, E: KvElement> {
    /// Instructions.
    pub isa: Isa,
    /// The layer's keys and values.
    pub cache: &'a LayerCache<E>,
    /// The operation.
    pub op: &'a AttentionOp,
    /// Of the layer.
    pub window: Option<u32>,
    /// Which of a sequence's block tables.
    pub kv_group: usize,
    /// Slots of a block.
    pub block_size: usize,
    /// All sequences' block tables.
    pub tables: &'a [u32],
    /// `[num_tokens, num_heads * head_dim]`
    pub q: &'a [f32],
}

/// A worker's memory for one tile.
pub struct Scratch<'a> {
    padded: usize,
    q: Queries<'a>,
    /// `[rows][PARTITION]`
    scores: &'a mut [f32],
    /// `[rows][padded]` of the current partition.
    values: &'a mut [f32],
    /// `[rows][padded]` of all partitions so far.
    acc: &'a mut [f32],
    stats: [RowStats; MAX_ROWS],
    /// Keys, values and their scales of one partition, for blocks that are not whole groups.
    gathered: &'a mut [f32],
}

/// A row's result.
pub struct RowState<'a> {
    /// Over all partitions that were run.
    pub stats: RowStats,
    /// `[padded]`, not yet divided by the sum.
    pub acc: &'a [f32],
}

impl<'a> Scratch<'a> {
    /// Floats that heads of at most `head_dim` need.
    pub fn floats(head_dim: usize, block_size: usize) -> usize {
        let padded = padded_dim(head_dim);
        let tile = 3 * padded * MAX_ROWS + MAX_ROWS * PARTITION;
        // Elements of fewer than 4 bytes use a part of it.
        let whole = block_size.is_multiple_of(GROUP);
        let gathered = if whole { 0 } else { (2 * padded + 2) * PARTITION };
        (tile + gathered).next_multiple_of(GROUP)
    }

    /// Splits a worker's memory.
    pub fn new(memory: &'a mut [f32], head_dim: usize) -> Self {
        let padded = padded_dim(head_dim);
        let (q, rest) = memory.split_at_mut(padded * MAX_ROWS);
        let (scores, rest) = rest.split_at_mut(MAX_ROWS * PARTITION);
        let (values, rest) = rest.split_at_mut(padded * MAX_ROWS);
        let (acc, gathered) = rest.split_at_mut(padded * MAX_ROWS);
        let stats = [RowStats::NONE; MAX_ROWS];
        let q = Queries { words: q, scales: [0.0; MAX_ROWS], offsets: [0; MAX_ROWS] };
        Scratch { padded, q, scores, values, acc, stats, gathered }
    }

    /// The result of a row of the tile.
    pub fn row(&self, row: usize) -> RowState<'_> {
        RowState { stats: self.stats[row], acc: &self.acc[row * self.padded..][..self.padded] }
    }
}

impl RowState<'_> {
    /// Of a partition that the row does not see.
    pub const NONE: Self = RowState { stats: RowStats::NONE, acc: &[] };
}

/// Joins a partition into the total of the ones before it; one without visible slots adds nothing.
pub fn merge(isa: Isa, total: &mut RowStats, acc: &mut [f32], part: RowStats, values: &[f32]) {
    if part.sum == 0.0 {
        return;
    }
    if total.sum == 0.0 {
        *total = part;
        acc.copy_from_slice(values);
        return;
    }
    let max = if part.max > total.max { part.max } else { total.max };
    let (a, b) = (exp(total.max - max), exp(part.max - max));
    *total = RowStats { max, sum: total.sum.mul_add(a, part.sum * b) };
    scale_add(isa, acc, a, values, b);
}

impl<E: KvElement> TileContext<'_, E> {
    /// The token (of the step) and the query head of a row of a tile.
    pub fn token_and_head(&self, item: &Item, row: usize) -> (usize, usize) {
        let group = self.op.num_heads / self.cache.num_kv_heads;
        let row = item.first_row + row;
        (item.seq.token_start as usize + row / group, item.kv_head * group + row % group)
    }

    fn position(&self, item: &Item, row: usize) -> usize {
        let (token, _) = self.token_and_head(item, row);
        let first = item.seq.context_len - item.seq.num_tokens;
        first as usize + token - item.seq.token_start as usize
    }

    // The first position that a token sees.
    fn first_visible(&self, position: usize) -> usize {
        self.window.map_or(0, |w| (position + 1).saturating_sub(w as usize))
    }

    /// Runs the item. Without partitions of its own it leaves each row's result in the scratch;
    /// else `keep` gets those of each partition and row. `next` comes after it, and is asked for.
    pub fn run(
        &self,
        item: &Item,
        next: Option<&Item>,
        scratch: &mut Scratch<'_>,
        keep: impl Fn(usize, usize, RowState<'_>),
    ) {
        let sight = self.sight(item);
        let rows = padded_rows(item.num_rows);
        self.load_queries(item, rows, scratch);
        // Groups that are gathered have room for one partition: they are not foreseen.
        let foresees = self.block_size.is_multiple_of(GROUP);
        let mut groups = [GroupPtrs::NULL; GROUPS];
        let mut ahead = [GroupPtrs::NULL; GROUPS];
        let mut num_groups = 0;
        for partition in sight.wanted.clone() {
            let Some(positions) = sight.positions(partition) else {
                (0..item.num_rows).for_each(|row| keep(partition, row, RowState::NONE));
                continue;
            };
            if num_groups == 0 {
                num_groups = num_groups_of(&positions);
                let groups = &mut groups[..num_groups];
                self.find_groups(item, positions.clone(), groups, scratch.gathered);
            }
            let is_last = partition + 1 == sight.wanted.end;
            let num_ahead = match next {
                _ if !foresees => 0,
                Some(next) if is_last => self.foresee(next, self.sight(next).first(), &mut ahead),
                None if is_last => 0,
                _ => self.foresee(item, sight.positions(partition + 1), &mut ahead),
            };
            let job = TileJob {
                groups: &groups[..num_groups],
                ahead: &ahead[..num_ahead],
                head_dim: self.cache.head_dim,
                num_slots: positions.end - positions.start / GROUP * GROUP,
            };
            let stats = self.partition(item, &job, &positions, rows, scratch);
            for (row, stats) in stats.iter().enumerate().take(item.num_rows) {
                let at = row * scratch.padded..(row + 1) * scratch.padded;
                let (acc, values) = (&mut scratch.acc[at.clone()], &scratch.values[at]);
                match item.partitions {
                    None => merge(self.isa, &mut scratch.stats[row], acc, *stats, values),
                    Some(_) => keep(partition, row, RowState { stats: *stats, acc: values }),
                }
            }
            (groups, num_groups) = (ahead, num_ahead);
        }
    }

    fn sight(&self, item: &Item) -> Sight {
        let last = self.position(item, item.num_rows - 1);
        let first = self.first_visible(self.position(item, 0));
        let visible = first / PARTITION..last / PARTITION + 1;
        Sight { first, last, wanted: item.partitions.map_or(visible, |(from, to)| from..to) }
    }

    // The groups of some positions of an item whose turn is next; how many.
    fn foresee(
        &self,
        item: &Item,
        positions: Option<Range<usize>>,
        groups: &mut [GroupPtrs<E::Raw>; GROUPS],
    ) -> usize {
        let Some(positions) = positions else { return 0 };
        let num_groups = num_groups_of(&positions);
        self.find_groups(item, positions, &mut groups[..num_groups], &mut []);
        num_groups
    }

    // Scales the tile's queries and lays them out.
    fn load_queries(&self, item: &Item, padded_rows: usize, scratch: &mut Scratch<'_>) {
        let (dim, scale) = (self.cache.head_dim, self.op.scale);
        for row in 0..padded_rows {
            // The rows that only pad repeat the last one: their results are not used.
            let (token, head) = self.token_and_head(item, row.min(item.num_rows - 1));
            let q = &self.q[(token * self.op.num_heads + head) * dim..][..dim];
            put_query::<E>(self.isa, row, padded_rows, q, scale, &mut scratch.q);
        }
    }

    // One partition: its rows' statistics, and their values in the scratch.
    fn partition(
        &self,
        item: &Item,
        job: &TileJob<'_, E::Raw>,
        positions: &Range<usize>,
        padded_rows: usize,
        scratch: &mut Scratch<'_>,
    ) -> [RowStats; MAX_ROWS] {
        // SAFETY: the groups were just found in the cache, or gathered.
        unsafe { scores::<E>(self.isa, job, padded_rows, &scratch.q, scratch.scores) };
        let softmax = match Way::of::<E>(self.isa) {
            Way::Pairs => softmax_row_rounded,
            Way::Float | Way::Codes => softmax_row,
        };
        let start = positions.start / GROUP * GROUP;
        let mut stats = [RowStats::NONE; MAX_ROWS];
        for (row, stats) in stats.iter_mut().enumerate().take(padded_rows) {
            let scores = &mut scratch.scores[row * PARTITION..][..job.groups.len() * GROUP];
            if row >= item.num_rows {
                scores.fill(0.0);
                continue;
            }
            let position = self.position(item, row);
            let first = self.first_visible(position).saturating_sub(start);
            let end = (position + 1).saturating_sub(start).min(job.num_slots);
            *stats = softmax(self.isa, scores, first, end, self.op.softcap);
        }
        // SAFETY: as above.
        unsafe {
            weighted_values::<E>(self.isa, job, padded_rows, scratch.scores, scratch.values);
        }
        stats
    }

    // Fills `groups` with the groups that `positions` lie in. Nothing before them is read: the
    // table may have no block there.
    fn find_groups(
        &self,
        item: &Item,
        positions: Range<usize>,
        groups: &mut [GroupPtrs<E::Raw>],
        gathered: &mut [f32],
    ) {
        let table_len = item.seq.table_len as usize;
        let table_start = item.seq.table_start as usize + self.kv_group * table_len;
        let table = &self.tables[table_start..][..table_len];
        let start = positions.start / GROUP * GROUP;
        if self.block_size.is_multiple_of(GROUP) {
            let (mut block, mut slot) = (start / self.block_size, start % self.block_size);
            for group in groups {
                let at = (table[block] as usize * self.block_size + slot) / GROUP;
                *group = self.cache.group(at, item.kv_head);
                slot += GROUP;
                if slot == self.block_size {
                    (block, slot) = (block + 1, 0);
                }
            }
            return;
        }
        let slot = |position: usize| {
            let block = table[position / self.block_size] as usize;
            block * self.block_size + position % self.block_size
        };
        let dim = self.cache.head_dim;
        let (scales, elements) = gathered.split_at_mut(2 * PARTITION);
        let (keys, values) = split_raw::<E::Raw>(elements);
        let key_groups = keys.chunks_exact_mut(key_dim::<E>(dim) * GROUP);
        let value_groups = values.chunks_exact_mut(padded_dim(dim) * GROUP);
        let memory = key_groups.zip(value_groups).zip(scales.chunks_exact_mut(2 * GROUP));
        for (i, ((keys, values), scales)) in memory.take(groups.len()).enumerate() {
            let (key_scales, value_scales) = scales.split_at_mut(GROUP);
            let mut out = GroupMut { keys, values, key_scales, value_scales };
            let first = start + i * GROUP;
            if !positions.contains(&first) || !positions.contains(&(first + GROUP - 1)) {
                out.clear();
            }
            for position in positions.start.max(first)..positions.end.min(first + GROUP) {
                self.cache.gather(slot(position), item.kv_head, position - first, &mut out);
            }
            groups[i] = out.ptrs();
        }
    }
}

/// What the rows of an item see.
struct Sight {
    /// The first position that any of them sees.
    first: usize,
    /// The last one.
    last: usize,
    /// Partitions to run.
    wanted: Range<usize>,
}

impl Sight {
    // Those of a partition. Positions before the first visible one have no part in it.
    fn positions(&self, partition: usize) -> Option<Range<usize>> {
        let start = (partition * PARTITION).max(self.first);
        let end = (self.last + 1).min((partition + 1) * PARTITION);
        (start < end).then_some(start..end)
    }

    // Those that are attended to first.
    fn first(&self) -> Option<Range<usize>> {
        self.wanted.clone().find_map(|partition| self.positions(partition))
    }
}

// Groups that positions lie in.
fn num_groups_of(positions: &Range<usize>) -> usize {
    positions.end.div_ceil(GROUP) - positions.start / GROUP
}

// Two halves of scratch memory as elements of the cache.
fn split_raw<R: Plain>(memory: &mut [f32]) -> (&mut [R], &mut [R]) {
    let (a, b) = memory.split_at_mut(memory.len() / 2);
    let cast = |half: &mut [f32]| {
        let len = size_of_val(half) / size_of::<R>();
        // SAFETY: R is plain data of at most 4 bytes, aligned no stricter than f32.
        unsafe { std::slice::from_raw_parts_mut(half.as_mut_ptr().cast::<R>(), len) }
    };
    (cast(a), cast(b))
}
