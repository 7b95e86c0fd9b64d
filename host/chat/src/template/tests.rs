//! Templates of real shape, hostile templates, and what requests may ask of them.
#![allow(clippy::unwrap_used)]
use proptest::prelude::*;
use serde_json::json;

use super::*;

fn template(source: &str) -> ChatTemplate {
    let tokens = TemplateTokens {
        bos: Some("<s>".into()),
        eos: Some("</s>".into()),
        ..TemplateTokens::default()
    };
    ChatTemplate::new(source, tokens).unwrap()
}

fn render(source: &str, messages: Value) -> Result<String, TemplateError> {
    template(source).render(messages.as_array().unwrap(), None, &Map::new(), true)
}

fn kwargs(value: Value) -> Map<String, Value> {
    value.as_object().unwrap().clone()
}

const CHATML: &str = "{% for message in messages %}{{'<|im_start|>' + message['role'] + '\\n' + \
    message['content'] + '<|im_end|>' + '\\n'}}{% endfor %}{% if add_generation_prompt %}\
    {{ '<|im_start|>assistant\\n' }}{% endif %}";

/// A cut of the usual tools template: object arguments, string content.
const TOOLS: &str = "{%- if tools %}{% for tool in tools %}{{ tool | tojson }}\n{% endfor %}\
    {%- endif %}{% for m in messages %}[{{ m.role }}]{{ m.content }}{% for call in m.tool_calls %}\
    {\"name\": \"{{ call.function.name }}\", \"arguments\": {{ call.function.arguments | tojson }}}\
    {% endfor %}{% endfor %}";

/// As DeepSeek's: string arguments, null content beside calls.
const STRINGS: &str = "{% for m in messages %}{% if m['role'] == 'assistant' and m['content'] is \
    none %}{% for call in m['tool_calls'] %}{{ '<call>' + call['type'] + ' ' + \
    call['function']['name'] + '\\n' + call['function']['arguments'] }}{% endfor %}{% else %}\
    {{ m['role'] + ':' + m['content'] }}{% endif %}{% endfor %}";

/// As multimodal ones: content is a list.
const PARTS: &str = "{% for m in messages %}{% for part in m.content %}{% if part.type == 'text' %}\
    <{{ part.text }}>{% endif %}{% endfor %}{% endfor %}";

#[test]
fn chatml_from_strings_and_parts() {
    let text = "<|im_start|>user\nHi\nyou<|im_end|>\n<|im_start|>assistant\n";
    let parts = json!([{"type": "text", "text": "Hi"}, {"type": "text", "text": "you"}]);
    assert_eq!(render(CHATML, json!([{"role": "user", "content": "Hi\nyou"}])).unwrap(), text);
    assert_eq!(render(CHATML, json!([{"role": "user", "content": parts}])).unwrap(), text);
    let messages = json!([{"role": "user", "content": "a"}]);
    assert_eq!(render(PARTS, messages).unwrap(), "<a>");
    let messages = json!([{"role": "user", "content": parts}]);
    assert_eq!(render(PARTS, messages).unwrap(), "<Hi><you>");
}

#[test]
fn arguments_in_the_shape_that_the_template_takes() {
    let call = |arguments: Value| {
        json!([{"role": "user", "content": "u"}, {"role": "assistant", "content": null,
            "tool_calls": [{"id": "1", "function": {"name": "f", "arguments": arguments}}]}])
    };
    for arguments in [json!("{\"b\": 1, \"a\": \"é\"}"), json!({"b": 1, "a": "é"})] {
        let prompt = render(TOOLS, call(arguments.clone())).unwrap();
        let end = "{\"name\": \"f\", \"arguments\": {\"b\": 1, \"a\": \"é\"}}";
        assert!(prompt.ends_with(end), "{prompt}");
        assert!(!prompt.contains("None"), "{prompt}");
        let prompt = render(STRINGS, call(arguments)).unwrap();
        assert!(prompt.starts_with("user:u<call>function f\n{\"b\":"), "{prompt}");
    }
    assert!(render(TOOLS, call(json!(""))).unwrap().ends_with("\"arguments\": {}}"));
    let error = render(TOOLS, call(json!("{\"a\": "))).unwrap_err().to_string();
    assert!(
        error.contains("`messages[1].tool_calls[0].function.arguments` is not JSON"),
        "{error}"
    );
}

#[test]
fn calls_that_a_template_does_not_show_do_no_harm() {
    let call = json!([{"id": "1", "function": {"name": "f", "arguments": "{}"}}]);
    let messages = json!([{"role": "assistant", "content": null, "tool_calls": call}]);
    let prompt = render(CHATML, messages).unwrap();
    assert!(prompt.starts_with("<|im_start|>assistant\n<|im_end|>\n"), "{prompt}");
}

#[test]
fn bad_messages_are_named() {
    let cases = [
        (json!([1]), "`messages[0]` is not"),
        (json!([{"content": "x"}]), "`messages[0].role`"),
        (json!([{"role": "user", "content": 3}]), "`messages[0].content`"),
        (
            json!([{"role": "user", "content": [{"type": "image_url", "image_url": {}}]}]),
            "`messages[0].content[0].type` is `image_url`",
        ),
        (json!([{"role": "user", "content": [{"type": "text"}]}]), "`messages[0].content[0].text`"),
        (json!([{"role": "assistant", "tool_calls": {}}]), "`messages[0].tool_calls`"),
        (
            json!([{"role": "assistant", "tool_calls": [{"function": {}}]}]),
            "`messages[0].tool_calls[0].function.name`",
        ),
    ];
    for (messages, part) in cases {
        let error = render(CHATML, messages).unwrap_err();
        assert!(error.to_string().contains(part), "{error}");
        assert!(error.is_from_request());
    }
}

#[test]
fn templates_that_never_end_or_grow_are_stopped() {
    let cases = [
        "{% for i in range(100000) %}{% for j in range(100000) %}{% endfor %}{% endfor %}",
        "{% set ns = namespace(s='x') %}{% for i in range(90) %}{% set ns.s = ns.s ~ ns.s %}\
         {% endfor %}{{ ns.s }}",
        "{% macro f(n) %}{{ f(n + 1) }}{% endmacro %}{{ f(0) }}",
        "{{ 'x' * 100000000000 }}",
        "{% set ns = namespace(l=[1]) %}{% for i in range(60) %}{% set ns.l = [ns.l, ns.l] %}\
         {% endfor %}{{ ns.l | tojson }}",
        "{% set ns = namespace(l=[1]) %}{% for i in range(60) %}{% set ns.l = [ns.l, ns.l] %}\
         {% endfor %}{{ ns.l }}",
        "{% set ns = namespace(l=[1]) %}{% for i in range(5000) %}{% set ns.l = [ns.l] %}\
         {% endfor %}{{ ns.l | tojson }}",
    ];
    for source in cases {
        let error = render(source, json!([{"role": "user", "content": "x"}])).unwrap_err();
        assert!(matches!(error, TemplateError::Budget { .. }), "{source}: {error:?}");
    }
    // The same template still works.
    let slow = template(
        "{% if stop is not defined %}{% for i in range(100000) %}{% for j in \
        range(100000) %}{% endfor %}{% endfor %}{% endif %}ok",
    );
    let messages = [json!({"role": "user", "content": "x"})];
    assert!(slow.render(&messages, None, &Map::new(), true).is_err());
    assert_eq!(slow.render(&messages, None, &kwargs(json!({"stop": 1})), true).unwrap(), "ok");
}

#[test]
fn raised_exceptions_carry_their_message() {
    let source = "{% macro check(m) %}{% if m.role != 'user' %}{{ raise_exception('only users: ' ~ \
        m.role) }}{% endif %}{% endmacro %}{% for m in messages %}{{ check(m) }}{% endfor %}";
    let error = render(source, json!([{"role": "system", "content": ""}])).unwrap_err();
    assert_eq!(error, TemplateError::Raised("only users: system".into()));
    let error =
        render("a\n{{ messages[0].nothing.at_all }}", json!([{"role": "user"}])).unwrap_err();
    assert!(matches!(error, TemplateError::Render { line: 2, .. }), "{error:?}");
    let error = ChatTemplate::new("a\n\n{% for %}", TemplateTokens::default()).unwrap_err();
    assert!(matches!(error, TemplateError::Syntax { line: 3, .. }), "{error:?}");
}

#[test]
fn finds_out_whether_tools_are_used() {
    assert!(template(TOOLS).uses_tools());
    assert!(!template(CHATML).uses_tools());
    assert!(!template(STRINGS).uses_tools());
    // Tools only beside a system message; and a template that refuses one.
    let beside_system = "{% if messages[0].role == 'system' and tools %}{{ tools }}{% endif %}";
    assert!(template(beside_system).uses_tools());
    let no_system = "{% if messages[0].role == 'system' %}{{ raise_exception('no') }}{% endif %}\
        {% for t in tools or [] %}{{ t.function.name }}{% endfor %}";
    assert!(template(no_system).uses_tools());
}

#[test]
fn extensions_of_the_reference() {
    let one = |source: &str| render(source, json!([{"role": "user", "content": "x"}])).unwrap();
    assert_eq!(one("{{ {'a': [1, 'é<']} | tojson }}"), "{\"a\": [1, \"é<\"]}");
    assert_eq!(one("{{ {'a': 1} | tojson(indent=2) }}"), "{\n  \"a\": 1\n}");
    assert_eq!(one("{{ 'é' | tojson(ensure_ascii=true) }}"), "\"\\u00e9\"");
    assert_eq!(
        one("{{ [1.0, none, true, {'k': \"it's\"}] }}"),
        "[1.0, None, True, {'k': \"it's\"}]"
    );
    assert_eq!(one("{{ bos_token }}|{{ tools }}|{{ documents is none }}"), "<s>|None|True");
    assert_eq!(one("a\n  {% generation %}\nb\n  {%- endgeneration %}\nc"), "a\nbc");
    assert_eq!(one("{{ strftime_now('%Y-%m-%d') | length }}"), "10");
    assert_eq!(
        one("{% for i in [1, 2, 3] %}{% if i == 2 %}{% break %}{% endif %}{{ i }}{% endfor %}"),
        "1"
    );
    assert_eq!(one("{{ ' a<b>c '.strip().split('<')[-1].rstrip('c').upper() }}"), "B>");
}

#[test]
fn roles_reasoning_and_kwargs() {
    let source = "{% for m in messages %}{{ m.role }}:{{ m.reasoning_content }}/{{ m.reasoning }};\
        {% endfor %}{{ enable_thinking }}";
    let messages = [
        json!({"role": "developer", "content": "x"}),
        json!({"role": "assistant", "content": "y", "reasoning": "r"}),
    ];
    let template = template(source);
    let prompt = template.render(&messages, None, &kwargs(json!({"enable_thinking": false})), true);
    assert_eq!(prompt.unwrap(), "system:/;assistant:r/r;False");
    let error = template.render(&messages, None, &kwargs(json!({"messages": []})), true);
    assert!(error.unwrap_err().to_string().contains("`chat_template_kwargs.messages`"));
}

#[test]
fn goes_on_with_the_last_message() {
    let template = template(CHATML);
    let messages = |text: &str| {
        [json!({"role": "user", "content": "a"}), json!({"role": "assistant", "content": text})]
    };
    let prompt = template.render_continuing(&messages("Sure: a"), None, &Map::new()).unwrap();
    assert!(prompt.ends_with("<|im_start|>assistant\nSure: a"), "{prompt}");
    assert!(template.render_continuing(&messages(" "), None, &Map::new()).is_err());
}

const WORDS: &[&str] = &[
    "{%",
    "%}",
    "{{",
    "}}",
    "{%-",
    "-%}",
    "{#",
    "#}",
    " ",
    "if ",
    "for ",
    " in ",
    "x",
    "endif",
    "endfor",
    "else",
    "set ",
    "=",
    "macro f()",
    "endmacro",
    "messages",
    "tools",
    "[",
    "]",
    "'",
    "|",
    "tojson",
    "generation",
    "endgeneration",
    "(",
    ")",
    "é",
    ".",
    "0",
];

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]
    /// Any source either compiles or is refused, any rendering ends; nothing panics.
    #[test]
    fn no_source_panics(
        words in prop::collection::vec(prop::sample::select(WORDS), 0..24),
    ) {
        if let Ok(template) = ChatTemplate::new(&words.concat(), TemplateTokens::default()) {
            let _ = template.render(&[user("x")], None, &Map::new(), true);
            let _ = template.uses_tools();
        }
    }

    /// A content never changes a prompt elsewhere than in its own place.
    #[test]
    fn contents_come_out_as_they_went_in(text in "[ -~é\n]{0,40}") {
        let prompt = template(CHATML).render(&[user(&text)], None, &Map::new(), true).unwrap();
        let expected = format!("<|im_start|>user\n{text}<|im_end|>\n<|im_start|>assistant\n");
        prop_assert_eq!(prompt, expected);
    }
}

fn user(text: &str) -> Value {
    json!({"role": "user", "content": text})
}
