//! What a string in a call's arguments is, where the template writes every value as one: the
//! tool's schema decides (policy U12). The reader of bare keys uses it.

use alloc::string::String;
use alloc::vec::Vec;

use crate::document::Document;
use crate::schema::{Schema, Types, literal};

/// The schema of one tool, and the place in it that the reader has come to.
#[derive(Debug)]
pub(crate) struct Typing {
    /// A list of that tool alone.
    tools: String,
    name: String,
    /// Keys of the open containers; none: an item of a list.
    path: Vec<Option<String>>,
    /// The types of the items of the innermost list, once looked up.
    items: Option<Types>,
    types: Types,
    /// The value so far.
    pub text: String,
}

impl Typing {
    pub fn new(tools: &str, name: &str) -> Self {
        let is_named = |tool: &Document<'_>| {
            let function = tool.get("function").unwrap_or(*tool);
            function.get("name").is_some_and(|found| found.is_string(name))
        };
        let tool = Document::of(tools).and_then(|tools| tools.items().find(is_named));
        let mut tools = String::from("[");
        tools.push_str(tool.map_or("", Document::text));
        tools.push(']');
        Typing {
            tools,
            name: name.into(),
            path: Vec::new(),
            items: None,
            types: Types::UNKNOWN,
            text: String::new(),
        }
    }

    /// A container opens as the value of `key` or as an item.
    pub fn open(&mut self, key: Option<&str>) {
        self.path.push(key.map(Into::into));
        self.items = None;
    }

    /// It closes.
    pub fn close(&mut self) {
        self.path.pop();
        self.items = None;
    }

    /// A string begins as the value of `key` or as an item: must it be read whole? Inside of a list
    /// or an object it is a string if it may be one: no template writes other values so there.
    pub fn begin(&mut self, key: Option<&str>) -> bool {
        self.text.clear();
        self.types = match (key, self.items) {
            (None, Some(types)) => types,
            _ => self.look_up(key),
        };
        if key.is_none() {
            self.items = Some(self.types);
        }
        let is_nested = !self.path.is_empty();
        !(self.types.is_text() || is_nested && self.types.has(Types::STRING))
    }

    fn look_up(&self, key: Option<&str>) -> Types {
        let mut schema = Schema::of_tool(&self.tools, &self.name);
        for step in self.path.iter().map(Option::as_deref).chain([key]) {
            schema = match step {
                Some(key) => schema.property(key),
                None => schema.items(),
            };
        }
        schema.types()
    }

    /// The value as a JSON literal; none: it is a string.
    pub fn literal(&self) -> Option<&str> {
        literal(&self.text, self.types, &["null"])
    }
}
