//! A command line as text for a shell.

/// Each option with its values on a line of its own, quoted for a POSIX shell.
pub fn shell_lines(words: &[String]) -> String {
    let mut text = String::new();
    for (number, word) in words.iter().enumerate() {
        let is_option = word.starts_with('-') && word.len() > 1;
        text += match number {
            0 => "",
            _ if is_option => " \\\n  ",
            _ => " ",
        };
        text += &quoted(word);
    }
    text + "\n"
}

fn quoted(word: &str) -> String {
    let is_plain = |c: char| {
        c.is_ascii_alphanumeric()
            || matches!(c, '-' | '_' | '=' | ',' | '.' | '/' | ':' | '@' | '+')
    };
    match !word.is_empty() && word.chars().all(is_plain) {
        true => word.to_owned(),
        false => format!("'{}'", word.replace('\'', r"'\''")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn options_have_lines_and_words_are_quoted() {
        let words = ["qemu", "-m", "4G", "-append", "it's a b", ""].map(String::from);
        assert_eq!(shell_lines(&words), "qemu \\\n  -m 4G \\\n  -append 'it'\\''s a b' ''\n");
    }
}
