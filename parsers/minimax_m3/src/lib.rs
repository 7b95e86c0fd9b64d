//! MiniMax M3: arguments as a tree of tags, each behind the token `]<]minimax[>[`.

#![cfg_attr(target_arch = "wasm32", no_std)]

extern crate alloc;

use alloc::boxed::Box;

use tenon_guest::{
    Arguments, CallFormat, CallGrammar, Declared, Family, Parameters, Rule, Section, Tree,
    TreeRules, style,
};

const TAGS: TreeRules = TreeRules {
    tag: "]<]minimax[>[<",
    closer: "]<]minimax[>[</invoke>",
    outer: &["]<]minimax[>[</tool_call>", "]<]minimax[>[<invoke name="],
};

/// The format.
pub struct MinimaxM3;

impl Declared for MinimaxM3 {
    const FAMILY: &'static Family = &Family {
        aliases: &["minimax-m3"],
        reasoning: &[style::MINIMAX_M3],
        calls: Some(&CallFormat {
            sections: &[Section {
                opener: "]<]minimax[>[<tool_call>",
                closer: "]<]minimax[>[</tool_call>",
                empty_is_text: false,
            }],
            ..CallFormat::new(&["]<]minimax[>[<invoke name="], |_| Box::new(Tree::new(&TAGS)))
        }),
        inner_tokens: &["]<]minimax[>["],
        grammar: Some(CallGrammar {
            opener: "]<]minimax[>[<tool_call>\n",
            call: "]<]minimax[>[<invoke name=\"$NAME\">$ARGS]<]minimax[>[</invoke>\n",
            between: Some(""),
            closer: "]<]minimax[>[</tool_call>",
            trigger: "]<]minimax[>[<tool_call>",
            arguments: Arguments::Parameters(Parameters {
                is_tree: true,
                ..Parameters::new(
                    "]<]minimax[>[<$KEY>$VALUE]<]minimax[>[</$KEY>",
                    &["]<]minimax[>[<"],
                )
            }),
            ..CallGrammar::JSON
        }),
        evidence: &[Rule::template(&["]<]minimax[>["], &[]), Rule::vocabulary(&["]<]minimax[>["])],
        ..Family::named(
            "minimax_m3",
            env!("CARGO_PKG_VERSION"),
            "trees of tags behind a token: MiniMax M3",
        )
    };
}

tenon_guest::export_parser!(MinimaxM3);
