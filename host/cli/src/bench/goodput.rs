//! Goodput: requests per second that met every service level objective, as `--goodput` names them
//! (`ttft:MS tpot:MS e2el:MS`, the words of `vllm bench serve`; Zhong et al. 2024, DistServe).

use std::fmt;

use super::stream::Timing;

/// One objective: a request's figure may be at most this.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Objective {
    /// Which figure.
    pub figure: Figure,
    /// At most, in milliseconds.
    pub limit_ms: f64,
}

/// What is bounded.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Figure {
    /// Time to first token.
    Ttft,
    /// Time per output token after the first.
    Tpot,
    /// From sending to the last token.
    E2el,
}

impl Figure {
    const ALL: [Figure; 3] = [Figure::Ttft, Figure::Tpot, Figure::E2el];

    fn name(self) -> &'static str {
        match self {
            Figure::Ttft => "ttft",
            Figure::Tpot => "tpot",
            Figure::E2el => "e2el",
        }
    }
}

/// As `--goodput` takes it.
impl fmt::Display for Objective {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}", self.figure.name(), self.limit_ms)
    }
}

impl Objective {
    /// Reads `ttft:200`.
    pub fn parse(text: &str) -> Result<Objective, String> {
        let bad = || "give `ttft:MS`, `tpot:MS` or `e2el:MS`, milliseconds above 0".to_owned();
        let (name, limit) = text.split_once(':').ok_or_else(bad)?;
        let figure = Figure::ALL.into_iter().find(|figure| figure.name() == name);
        let figure = figure.ok_or_else(bad)?;
        let limit_ms = limit.parse::<f64>().ok().filter(|ms| ms.is_finite() && *ms > 0.0);
        Ok(Objective { figure, limit_ms: limit_ms.ok_or_else(bad)? })
    }

    fn is_met(self, timing: &Timing) -> bool {
        let (first, last) = (timing.chunks_s[0], timing.chunks_s[timing.chunks_s.len() - 1]);
        let seconds = match self.figure {
            Figure::Ttft => first - timing.start_s,
            Figure::E2el => last - timing.start_s,
            // One token has no time between two.
            Figure::Tpot if timing.num_output_tokens < 2 => 0.0,
            Figure::Tpot => (last - first) / (timing.num_output_tokens - 1) as f64,
        };
        seconds * 1e3 <= self.limit_ms
    }
}

/// How many requests met all objectives.
pub fn num_good(timings: &[Timing], objectives: &[Objective]) -> usize {
    timings.iter().filter(|t| objectives.iter().all(|objective| objective.is_met(t))).count()
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn every_objective_must_be_met() {
        let timing = |chunks_s: &[f64], num_output_tokens| Timing {
            start_s: 1.0,
            chunks_s: chunks_s.to_vec(),
            end_s: 9.0,
            num_input_tokens: 1,
            num_output_tokens,
        };
        let timings = [timing(&[1.1, 1.2, 1.3], 3), timing(&[1.1, 2.1], 2), timing(&[1.3], 1)];
        let good = |texts: &[&str]| {
            let objectives: Vec<_> = texts.iter().map(|t| Objective::parse(t).unwrap()).collect();
            num_good(&timings, &objectives)
        };
        assert_eq!(good(&[]), 3);
        assert_eq!(good(&["ttft:200"]), 2);
        assert_eq!(good(&["tpot:150"]), 2);
        assert_eq!(good(&["ttft:200", "tpot:150"]), 1);
        assert_eq!(good(&["e2el:350"]), 2);
        for text in ["ttft:500", "tpot:0.5", "e2el:1250.25"] {
            assert_eq!(Objective::parse(text).unwrap().to_string(), text);
        }
        for bad in ["ttft", "itl:3", "ttft:0", "ttft:-1", "ttft:NaN", "ttft:fast"] {
            assert!(Objective::parse(bad).is_err(), "{bad}");
        }
    }
}
