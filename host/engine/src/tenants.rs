//! Who was served how much: the virtual token counters of fair sharing.
//!
//! Each tenant has a counter of the tokens that were computed for it, divided by its weight; who
//! has the smallest is next (Sheng et al. 2024, "Fairness in Serving Large Language Models"). A
//! tenant that comes back from idleness is lifted to the smallest counter of those at work, or when
//! there are none to that of who left last, so that nobody saves up a right to block the others.
//! Without fair sharing there is one lane.

use std::collections::HashMap;

/// Idle tenants whose counters are remembered; beyond, those that were served least are forgotten
/// (they would be lifted anyway).
const MAX_IDLE: usize = 1024;

/// What a token of weight 1 counts: fine enough for any weight up to [`MAX_WEIGHT`].
const SCALE: u64 = MAX_WEIGHT as u64;

/// Largest weight of a tenant.
pub const MAX_WEIGHT: u32 = 1 << 16;

/// On whose behalf a request runs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Tenant {
    /// Chosen by the caller.
    pub id: u64,
    /// Its share of the tokens, relative to other tenants' weights; 1 to [`MAX_WEIGHT`].
    pub weight: u32,
}

impl Default for Tenant {
    fn default() -> Self {
        Tenant { id: 0, weight: 1 }
    }
}

#[derive(Debug, Clone)]
struct Lane {
    tenant: Tenant,
    served: u64,
    // Sequences of its that are alive; 0: idle.
    num_live: usize,
}

/// The counters, by lane: a small index that stays while the tenant has sequences.
#[derive(Debug)]
pub(crate) struct Tenants {
    is_fair: bool,
    lanes: Vec<Lane>,
    index: HashMap<u64, usize>,
    free: Vec<usize>,
    num_idle: usize,
    // The counter of who left last.
    last_served: u64,
}

impl Tenants {
    pub fn new(is_fair: bool) -> Self {
        Tenants {
            is_fair,
            lanes: Vec::new(),
            index: HashMap::new(),
            free: Vec::new(),
            num_idle: 0,
            last_served: 0,
        }
    }

    /// A sequence of the tenant arrives: its lane.
    pub fn arrive(&mut self, tenant: Tenant) -> usize {
        let key = if self.is_fair { tenant.id } else { 0 };
        let lane = match self.index.get(&key) {
            Some(&lane) => lane,
            None => self.open(key),
        };
        let floor = self.lanes.iter().filter(|l| l.num_live > 0).map(|l| l.served).min();
        let entry = &mut self.lanes[lane];
        if entry.num_live == 0 {
            entry.served = entry.served.max(floor.unwrap_or(self.last_served));
            self.num_idle -= 1;
        }
        entry.tenant = Tenant { id: key, weight: tenant.weight.clamp(1, MAX_WEIGHT) };
        entry.num_live += 1;
        lane
    }

    /// A sequence of the lane ended.
    pub fn leave(&mut self, lane: usize) {
        let entry = &mut self.lanes[lane];
        entry.num_live -= 1;
        if entry.num_live == 0 {
            self.last_served = entry.served;
            self.num_idle += 1;
            self.forget_some();
        }
    }

    /// `num_tokens` are computed for the lane.
    pub fn charge(&mut self, lane: usize, num_tokens: usize) {
        if self.is_fair {
            let entry = &mut self.lanes[lane];
            entry.served += num_tokens as u64 * SCALE / u64::from(entry.tenant.weight);
        }
    }

    /// What the lane was served so far; less comes first.
    pub fn served(&self, lane: usize) -> u64 {
        self.lanes[lane].served
    }

    fn open(&mut self, id: u64) -> usize {
        let entry = Lane { tenant: Tenant { id, weight: 1 }, served: 0, num_live: 0 };
        let lane = match self.free.pop() {
            Some(lane) => {
                self.lanes[lane] = entry;
                lane
            }
            None => {
                self.lanes.push(entry);
                self.lanes.len() - 1
            }
        };
        self.index.insert(id, lane);
        self.num_idle += 1;
        lane
    }

    fn forget_some(&mut self) {
        while self.num_idle > MAX_IDLE {
            let idle = self.index.values().filter(|&&lane| self.lanes[lane].num_live == 0);
            let least = idle.min_by_key(|&&lane| self.lanes[lane].served);
            let lane = *least.expect("some are idle");
            self.index.remove(&self.lanes[lane].tenant.id);
            self.free.push(lane);
            self.num_idle -= 1;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tenant(id: u64, weight: u32) -> Tenant {
        Tenant { id, weight }
    }

    #[test]
    fn weights_divide_what_is_charged() {
        let mut tenants = Tenants::new(true);
        let (a, b) = (tenants.arrive(tenant(1, 1)), tenants.arrive(tenant(2, 3)));
        tenants.charge(a, 10);
        tenants.charge(b, 30);
        assert_eq!(tenants.served(a), tenants.served(b));
    }

    #[test]
    fn idleness_saves_nothing_up() {
        let mut tenants = Tenants::new(true);
        let a = tenants.arrive(tenant(1, 1));
        let b = tenants.arrive(tenant(2, 1));
        tenants.leave(b);
        tenants.charge(a, 100);
        let b = tenants.arrive(tenant(2, 1));
        assert_eq!(tenants.served(a), tenants.served(b));
        // And what was taken is not forgotten by leaving.
        tenants.charge(b, 50);
        tenants.leave(b);
        let again = tenants.arrive(tenant(2, 1));
        assert_eq!(tenants.served(again), tenants.served(a) + 50 * SCALE);
    }

    #[test]
    fn work_done_while_others_were_idle_is_not_held_against_a_tenant() {
        let mut tenants = Tenants::new(true);
        let a = tenants.arrive(tenant(1, 1));
        tenants.charge(a, 1000);
        tenants.leave(a);
        let b = tenants.arrive(tenant(2, 1));
        tenants.charge(b, 5);
        let a = tenants.arrive(tenant(1, 1));
        assert_eq!(tenants.served(a), tenants.served(b));
    }

    #[test]
    fn idle_tenants_are_bounded() {
        let mut tenants = Tenants::new(true);
        for id in 0..3 * MAX_IDLE as u64 {
            let lane = tenants.arrive(tenant(id, 1));
            tenants.charge(lane, 1);
            tenants.leave(lane);
        }
        assert!(tenants.lanes.len() <= MAX_IDLE + 1);
        assert_eq!(tenants.index.len(), MAX_IDLE);
    }

    #[test]
    fn without_fair_share_there_is_one_lane() {
        let mut tenants = Tenants::new(false);
        assert_eq!(tenants.arrive(tenant(1, 1)), tenants.arrive(tenant(2, 5)));
    }
}
