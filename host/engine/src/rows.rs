//! The running sequences: each in its row for as long as it runs, and the order among them.

use crate::config::SchedulingPolicy;
use crate::plan::Row;
use crate::sequence::Sequence;
use crate::tenants::Tenants;

#[derive(Debug)]
pub(crate) struct SequenceRows {
    // [max_num_seqs]
    rows: Vec<Option<Sequence>>,
    free: Vec<Row>,
    // Who comes first gets tokens first and gives up its blocks last.
    order: Vec<Row>,
}

impl SequenceRows {
    pub fn new(max_num_seqs: usize) -> Self {
        SequenceRows {
            rows: (0..max_num_seqs).map(|_| None).collect(),
            free: (0..max_num_seqs as u32).rev().map(Row).collect(),
            order: Vec::with_capacity(max_num_seqs),
        }
    }

    pub fn len(&self) -> usize {
        self.order.len()
    }

    pub fn is_empty(&self) -> bool {
        self.order.is_empty()
    }

    pub fn has_room(&self) -> bool {
        !self.free.is_empty()
    }

    /// The row at a place of the order.
    pub fn row_at(&self, at: usize) -> Row {
        self.order[at]
    }

    pub fn seq(&self, row: Row) -> &Sequence {
        self.rows[row.0 as usize].as_ref().expect("the row has an owner")
    }

    pub fn seq_mut(&mut self, row: Row) -> &mut Sequence {
        self.rows[row.0 as usize].as_mut().expect("the row has an owner")
    }

    /// In order.
    pub fn iter(&self) -> impl Iterator<Item = &Sequence> {
        self.order.iter().map(|&row| self.seq(row))
    }

    /// Gives the sequence a row and a place in the order.
    pub fn insert(&mut self, mut seq: Sequence, policy: SchedulingPolicy) -> Row {
        let row = self.free.pop().expect("rows and running sequences disagree");
        let at = match policy {
            SchedulingPolicy::FairShare => self.order.len(),
            _ => self.order.partition_point(|&row| self.seq(row).rank() < seq.rank()),
        };
        self.order.insert(at, row);
        seq.row = Some(row);
        self.rows[row.0 as usize] = Some(seq);
        row
    }

    /// Takes the sequence out of its row.
    pub fn remove(&mut self, row: Row) -> Sequence {
        let mut seq = self.rows[row.0 as usize].take().expect("the row has an owner");
        seq.row = None;
        self.order.retain(|&other| other != row);
        self.free.push(row);
        seq
    }

    /// The oldest first, then by what their tenants were served.
    pub fn sort_by_service(&mut self, tenants: &Tenants) {
        let rows = &self.rows;
        let seq = |row: &Row| rows[row.0 as usize].as_ref().expect("the row has an owner");
        let Some(oldest) = self.order.iter().map(|row| seq(row).id).min() else { return };
        self.order.sort_unstable_by_key(|row| {
            let seq = seq(row);
            (seq.id != oldest, tenants.served(seq.lane), seq.rank())
        });
    }
}
