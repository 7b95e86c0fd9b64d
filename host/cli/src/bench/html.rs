//! The report of `bench serve`: one HTML file that needs nothing else.

use std::fmt::Write as _;

use serde_json::{Map, Value};

use super::serve::Series;
use super::{chart, figure};

const STYLE: &str = "body{font:15px/1.5 system-ui,sans-serif;max-width:720px;margin:2em auto;\
    padding:0 1em;color:#222;background:#fff}h1{font-size:1.4em}h2{font-size:1.1em;\
    margin-top:2em}table{border-collapse:collapse}td{padding:.15em 1.5em .15em 0;\
    border-bottom:1px solid #ddd}td+td{text-align:right;font-variant-numeric:tabular-nums}\
    svg{width:100%}svg line{stroke:#888}svg rect{fill:#2a6fb0}svg path{fill:none;\
    stroke:#2a6fb0;stroke-width:2}svg text{font-size:12px;fill:#555}";

/// Text as it may stand in HTML, between tags and in quoted attributes.
pub fn escape(text: &str) -> String {
    let mut escaped = String::with_capacity(text.len());
    for c in text.chars() {
        match c {
            '&' => escaped.push_str("&amp;"),
            '<' => escaped.push_str("&lt;"),
            '>' => escaped.push_str("&gt;"),
            '"' => escaped.push_str("&quot;"),
            '\'' => escaped.push_str("&#39;"),
            // No control character has a meaning in HTML.
            c if c.is_control() && c != '\n' => escaped.push('\u{fffd}'),
            c => escaped.push(c),
        }
    }
    escaped
}

/// The page: what was asked, the figures (`rows`), three charts.
pub fn report(result: &Map<String, Value>, rows: &[(String, f64)], series: &Series) -> String {
    let model = escape(result["config"]["model"].as_str().unwrap_or_default());
    let figures = rows.iter().map(|(label, value)| (label.clone(), figure(*value)));
    format!(
        "<!doctype html>\n<html lang=\"en\"><head><meta charset=\"utf-8\">\
         <meta http-equiv=\"Content-Security-Policy\" \
         content=\"default-src 'none'; style-src 'nonce-report'\">\
         <title>Benchmark of {model}</title><style nonce=\"report\">{STYLE}</style></head><body>\n\
         <h1>Benchmark of {model}</h1>\n{figures}\
         <h2>Time to first token</h2>\n{ttft}\n\
         <h2>Time between chunks</h2>\n{itl}\n\
         <h2>Output tokens per second over time</h2>\n{tokens}\n\
         <h2>Set-up</h2>\n{config}{machine}</body></html>\n",
        figures = table(figures),
        ttft = chart::histogram(&series.ttft_ms, "ms"),
        itl = chart::histogram(&series.itl_ms, "ms"),
        tokens = chart::line(&series.tokens_per_second, "s"),
        config = table(fields(&result["config"])),
        machine = table(fields(&result["machine"])),
    )
}

/// A JSON object's members as text.
fn fields(object: &Value) -> impl Iterator<Item = (String, String)> {
    object.as_object().into_iter().flatten().map(|(name, value)| {
        let text = match value {
            Value::String(text) => text.clone(),
            other => other.to_string(),
        };
        (name.clone(), text)
    })
}

fn table(rows: impl Iterator<Item = (String, String)>) -> String {
    let mut html = String::from("<table>\n");
    for (name, value) in rows {
        // Writing to a string cannot fail.
        let _ = writeln!(html, "<tr><td>{}</td><td>{}</td></tr>", escape(&name), escape(&value));
    }
    html.push_str("</table>\n");
    html
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn text_cannot_become_markup() {
        assert_eq!(escape("a<b>&\"'"), "a&lt;b&gt;&amp;&quot;&#39;");
        assert_eq!(escape("Grüße, 東京\n\0"), "Grüße, 東京\n\u{fffd}");
        let hostile = "</title><script>alert(1)</script>";
        let mut result = Map::new();
        result.insert("config".into(), json!({"model": hostile, hostile: [hostile]}));
        result.insert("machine".into(), json!({"cpu": hostile}));
        let page = report(&result, &[(hostile.to_owned(), 1.0)], &Series::default());
        assert!(!page.contains("<script"), "{page}");
        assert!(page.contains("&lt;script&gt;"));
    }

    #[test]
    fn the_page_needs_nothing_else() {
        let mut result = Map::new();
        result.insert("config".into(), json!({"model": "m"}));
        result.insert("machine".into(), json!({}));
        let series = Series {
            ttft_ms: vec![1.0, 2.0],
            itl_ms: vec![3.0],
            tokens_per_second: vec![4.0, 5.0],
            ..Series::default()
        };
        let page = report(&result, &[], &series);
        assert_eq!(page.matches("<svg").count(), 3);
        for outside in ["http://", "https://", "src=", "href=", "url(", "@import"] {
            assert!(!page.contains(outside), "{outside}");
        }
    }
}
