//! The two text forms of metrics: Prometheus text format 0.0.4, which every collector reads, and
//! OpenMetrics 1.0.0.

/// A text form of metrics.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Exposition {
    /// Prometheus text format 0.0.4.
    Text,
    /// OpenMetrics 1.0.0.
    OpenMetrics,
}

impl Exposition {
    /// The form for a client with these `Accept` headers: OpenMetrics if the client names it and
    /// prefers no other, else the text format.
    pub(super) fn accepted<'a>(headers: impl Iterator<Item = &'a str>) -> Self {
        let (mut open_metrics, mut text) = (0, 0);
        for range in headers.flat_map(|header| header.split(',')) {
            let (media_type, parameters) = range.split_once(';').unwrap_or((range, ""));
            let quality = quality(parameters);
            match media_type.trim().to_ascii_lowercase().as_str() {
                "application/openmetrics-text" => open_metrics = open_metrics.max(quality),
                "text/plain" => text = text.max(quality),
                _ => {}
            }
        }
        if open_metrics > 0 && open_metrics >= text { Self::OpenMetrics } else { Self::Text }
    }

    /// The `Content-Type`.
    pub(super) const fn content_type(self) -> &'static str {
        match self {
            Self::Text => "text/plain; version=0.0.4; charset=utf-8",
            Self::OpenMetrics => "application/openmetrics-text; version=1.0.0; charset=utf-8",
        }
    }

    /// Metrics in this form, from a page in OpenMetrics.
    pub(super) fn encode(self, open_metrics: String) -> String {
        match self {
            Self::Text => text_format(&open_metrics),
            Self::OpenMetrics => open_metrics,
        }
    }
}

/// The quality of a media range in thousandths: 1000 without `q`, 0 if `q` is no number.
fn quality(parameters: &str) -> u32 {
    let value = parameters.split(';').find_map(|parameter| {
        let (key, value) = parameter.split_once('=')?;
        key.trim().eq_ignore_ascii_case("q").then_some(value.trim())
    });
    value.map_or(1000, |value| {
        let quality: f64 = value.parse().unwrap_or(0.0);
        (quality.clamp(0.0, 1.0) * 1000.0) as u32
    })
}

/// A page of OpenMetrics in the text format. There, a counter's metadata has its name with
/// `_total`, and there are no units and no end mark. Samples are the same in both.
fn text_format(open_metrics: &str) -> String {
    let mut text = String::with_capacity(open_metrics.len());
    let mut help = "";
    for line in open_metrics.lines() {
        let metadata = line.strip_prefix("# ").and_then(|rest| rest.split_once(' '));
        match metadata {
            Some(("HELP", named)) => help = named,
            Some(("TYPE", named)) => {
                let (name, kind) = named.split_once(' ').unwrap_or((named, "untyped"));
                let total = if kind == "counter" { "_total" } else { "" };
                let help = help.split_once(' ').map_or("", |(_, help)| help);
                text += &format!("# HELP {name}{total} {help}\n# TYPE {name}{total} {kind}\n");
            }
            Some(_) => {}
            None if line.starts_with('#') => {}
            None => {
                text += line;
                text.push('\n');
            }
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn open_metrics_is_for_clients_that_prefer_it() {
        let prometheus = "application/openmetrics-text;version=1.0.0;q=0.75,\
                          application/openmetrics-text;version=0.0.1;q=0.5,\
                          text/plain;version=0.0.4;q=0.25,*/*;q=0.1";
        for (headers, expected) in [
            (&[][..], Exposition::Text),
            (&["*/*"], Exposition::Text),
            (&["text/plain"], Exposition::Text),
            (&["text/html, application/json"], Exposition::Text),
            (&[prometheus], Exposition::OpenMetrics),
            (&["Application/OpenMetrics-Text"], Exposition::OpenMetrics),
            (&["text/plain", "application/openmetrics-text"], Exposition::OpenMetrics),
            (&["application/openmetrics-text;q=0.2, text/plain;q=0.3"], Exposition::Text),
            (&["application/openmetrics-text; Q=0"], Exposition::Text),
            (&["application/openmetrics-text;q=x"], Exposition::Text),
        ] {
            assert_eq!(Exposition::accepted(headers.iter().copied()), expected, "{headers:?}");
        }
    }

    #[test]
    fn the_text_format_names_counters_with_total_and_has_neither_units_nor_an_end() {
        let open_metrics = "# HELP a_bytes Memory, in \"bytes\"\n# TYPE a_bytes gauge\n\
             # UNIT a_bytes bytes\n\
             a_bytes{domain=\"# b\"} 1\n# HELP b Moves\n# TYPE b counter\nb_total 2\n# EOF\n";
        let text = "# HELP a_bytes Memory, in \"bytes\"\n# TYPE a_bytes gauge\n\
                    a_bytes{domain=\"# b\"} 1\n# HELP b_total Moves\n# TYPE b_total counter\n\
                    b_total 2\n";
        assert_eq!(Exposition::Text.encode(open_metrics.into()), text);
        assert_eq!(Exposition::OpenMetrics.encode(open_metrics.into()), open_metrics);
    }
}
