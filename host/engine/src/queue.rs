//! The sequences that wait for a row, in the order in which they will get one.
//!
//! One lane per tenant (one in all without fair sharing), each sorted by priority and arrival; the
//! head is the first of the lane that was served least. The scheduler takes heads only: nobody
//! overtakes a sequence that waits for blocks.

use std::collections::VecDeque;

use crate::sequence::Sequence;
use crate::tenants::Tenants;

#[derive(Debug, Default)]
pub(crate) struct WaitQueue {
    // [lanes]
    lanes: Vec<VecDeque<Sequence>>,
    len: usize,
}

impl WaitQueue {
    pub fn len(&self) -> usize {
        self.len
    }

    /// Puts a sequence where its rank belongs.
    pub fn insert(&mut self, seq: Sequence) {
        if self.lanes.len() <= seq.lane {
            self.lanes.resize_with(seq.lane + 1, VecDeque::new);
        }
        let lane = &mut self.lanes[seq.lane];
        let at = lane.partition_point(|s| s.rank() < seq.rank());
        lane.insert(at, seq);
        self.len += 1;
    }

    /// The sequence that is next, if any waits.
    pub fn head_mut(&mut self, tenants: &Tenants) -> Option<&mut Sequence> {
        let lane = self.head_lane(tenants)?;
        self.lanes[lane].front_mut()
    }

    /// Takes what [`WaitQueue::head_mut`] showed.
    pub fn pop(&mut self, tenants: &Tenants) -> Option<Sequence> {
        let lane = self.head_lane(tenants)?;
        let seq = self.lanes[lane].pop_front();
        self.len -= usize::from(seq.is_some());
        seq
    }

    /// Takes out all sequences that are meant.
    pub fn extract(&mut self, is_meant: impl Fn(&Sequence) -> bool) -> Vec<Sequence> {
        let mut taken = Vec::new();
        for lane in &mut self.lanes {
            let mut at = 0;
            while at < lane.len() {
                match is_meant(&lane[at]) {
                    true => taken.extend(lane.remove(at)),
                    false => at += 1,
                }
            }
        }
        self.len -= taken.len();
        taken
    }

    /// The youngest sequence that is meant, the head left out when `spares_head`.
    pub fn last_mut(
        &mut self,
        tenants: &Tenants,
        spares_head: bool,
        is_meant: impl Fn(&Sequence) -> bool,
    ) -> Option<&mut Sequence> {
        let head = self.head_mut(tenants).map(|s| s.id).filter(|_| spares_head);
        let all = self.lanes.iter_mut().flatten();
        all.filter(|s| Some(s.id) != head && is_meant(s)).max_by_key(|s| s.id)
    }

    pub fn iter(&self) -> impl Iterator<Item = &Sequence> {
        self.lanes.iter().flatten()
    }

    fn head_lane(&self, tenants: &Tenants) -> Option<usize> {
        let heads = self.lanes.iter().enumerate().filter_map(|(i, l)| Some((i, l.front()?)));
        let rank = |&(lane, head): &(usize, &Sequence)| (tenants.served(lane), head.rank());
        heads.min_by_key(rank).map(|(lane, _)| lane)
    }
}
