//! Edits of a text by byte range.

/// New text in place of a range of bytes, which is mostly empty.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Edit {
    pub(crate) start: usize,
    pub(crate) end: usize,
    pub(crate) text: String,
}

impl Edit {
    pub(crate) fn insert(at: usize, text: String) -> Self {
        Self { start: at, end: at, text }
    }
}

/// `text` with all edits. Those at one place keep their order. An edit that reaches into an earlier
/// one is dropped: there are none.
pub(crate) fn apply(text: &str, mut edits: Vec<Edit>) -> String {
    edits.sort_by_key(|edit| edit.start);
    let mut result =
        String::with_capacity(text.len() + edits.iter().map(|it| it.text.len()).sum::<usize>());
    let mut done = 0;
    for edit in edits {
        let Some(kept) = text.get(done..edit.start) else { continue };
        result.push_str(kept);
        result.push_str(&edit.text);
        done = edit.end.max(edit.start);
    }
    result.push_str(text.get(done..).unwrap_or_default());
    result
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn edits_of_one_place_keep_their_order() {
        let edits = vec![
            Edit::insert(2, "X".into()),
            Edit { start: 0, end: 1, text: "A".into() },
            Edit::insert(2, "Y".into()),
        ];
        assert_eq!(apply("abc", edits), "AbXYc");
        assert_eq!(apply("abc", Vec::new()), "abc");
    }
}
