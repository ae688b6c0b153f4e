//! Text out of files, chunks out of text, vectors out of chunks. Pure: no clock, no files, no network.

/// How long a chunk may be, in characters.
pub const CHUNK_CHARS: usize = 800;
/// How much of a chunk's end the next chunk begins with, in characters: a sentence on the border is found from both.
pub const OVERLAP_CHARS: usize = 100;
/// Length of a vector.
pub const DIMENSIONS: usize = 256;

const NGRAM_CHARS: usize = 4;
const NGRAM_WEIGHT: f32 = 0.35; // an n-gram says less than the word that it is part of
const WORD_CHARS_MAX: usize = 40; // longer "words" are hashes and encoded data, which nobody searches for

/// Words that stand in every English text and in every source file, and so say nothing about either. Sorted.
const STOP_WORDS: [&str; 40] = [
    "a", "all", "an", "and", "are", "as", "at", "be", "by", "can", "do", "does", "for", "from", "has", "have", "how",
    "if", "in", "is", "it", "its", "let", "not", "of", "on", "or", "pub", "self", "than", "that", "the", "this", "to",
    "use", "was", "what", "when", "with", "you",
];

/// The text of a file. Markup (by the file's ending) loses its tags; other text stays as it is, without what a
/// database text cannot hold. Bytes that are not UTF-8 become U+FFFD.
pub fn extract(file_name: &str, bytes: &[u8]) -> String {
    let text = String::from_utf8_lossy(bytes);
    let ending = file_name.rsplit_once('.').map_or("", |(_, ending)| ending).to_ascii_lowercase();
    match ending.as_str() {
        "html" | "htm" | "xhtml" | "xml" | "svg" => without_nul(&without_tags(&text)),
        _ => without_nul(&text),
    }
}

/// Cuts text into chunks of at most [`CHUNK_CHARS`], at the end of a paragraph, else of a line, else of a word, else
/// anywhere between two characters. Neighbours overlap by about [`OVERLAP_CHARS`]. Text of white space gives none.
pub fn split(text: &str) -> Vec<&str> {
    let mut chunks = Vec::new();
    let mut rest = text.trim();
    loop {
        let window = first_chars(rest, CHUNK_CHARS);
        let last = window.len() == rest.len();
        let cut = if last { window.len() } else { good_cut(window) };
        let chunk = rest[..cut].trim();
        if !chunk.is_empty() {
            chunks.push(chunk);
        }
        if last {
            return chunks;
        }
        rest = &rest[overlap_start(&rest[..cut])..];
    }
}

/// The vector of a text: its words and their n-grams, hashed into [`DIMENSIONS`] signed buckets, of length 1. The
/// number of times that a feature occurs counts by its logarithm. Text without any word gives a fixed unit vector.
pub fn vector(text: &str) -> Vec<f32> {
    let mut features = features(text);
    features.sort_unstable_by_key(|&(hash, _)| hash);
    let mut buckets = vec![0.0_f32; DIMENSIONS];
    for same in features.chunk_by(|a, b| a.0 == b.0) {
        let (hash, weight) = same[0];
        let sign = if hash >> 63 == 0 { 1.0 } else { -1.0 };
        buckets[hash as usize % DIMENSIONS] += sign * weight * (1.0 + (same.len() as f32).ln());
    }
    let length = buckets.iter().map(|x| x * x).sum::<f32>().sqrt();
    if length < f32::EPSILON {
        buckets[0] = 1.0;
        return buckets;
    }
    buckets.iter().map(|x| x / length).collect()
}

fn without_nul(text: &str) -> String {
    text.chars().filter(|&c| c != '\0').collect()
}

/// Drops tags, comments, scripts and styles, and resolves the five entities that matter.
fn without_tags(markup: &str) -> String {
    let mut text = String::with_capacity(markup.len());
    let mut rest = markup;
    while let Some(open) = rest.find('<') {
        text.push_str(&rest[..open]);
        rest = &rest[open..];
        let end = end_of_element(rest);
        if begins_a_block(rest) {
            text.push('\n');
        }
        rest = &rest[end..];
    }
    text.push_str(rest);
    text.replace("&lt;", "<").replace("&gt;", ">").replace("&quot;", "\"").replace("&nbsp;", " ").replace("&amp;", "&")
}

/// Where the tag (comment, script, style) ends that `markup` begins with. An unclosed one takes the rest.
fn end_of_element(markup: &str) -> usize {
    let closed_by = if markup.starts_with("<!--") {
        "-->"
    } else if starts_with_tag(markup, "script") {
        "</script>"
    } else if starts_with_tag(markup, "style") {
        "</style>"
    } else {
        ">"
    };
    let mut places = markup.as_bytes().windows(closed_by.len());
    let at = places.position(|place| place.eq_ignore_ascii_case(closed_by.as_bytes()));
    at.map_or(markup.len(), |at| at + closed_by.len())
}

fn starts_with_tag(markup: &str, tag: &str) -> bool {
    let name = markup.as_bytes().get(1..=tag.len()).unwrap_or_default();
    let next = markup.as_bytes().get(tag.len() + 1).copied().unwrap_or(b'>');
    name.eq_ignore_ascii_case(tag.as_bytes()) && !next.is_ascii_alphanumeric()
}

fn begins_a_block(markup: &str) -> bool {
    ["p", "br", "div", "li", "tr", "h1", "h2", "h3", "h4", "pre", "table", "ul", "ol"]
        .iter()
        .any(|tag| starts_with_tag(markup, tag))
}

fn first_chars(text: &str, chars: usize) -> &str {
    if text.len() <= chars {
        return text; // a character has at least one byte
    }
    text.char_indices().nth(chars).map_or(text, |(end, _)| &text[..end])
}

/// The best place to end a chunk in its second half, else its end.
fn good_cut(window: &str) -> usize {
    let half = window.floor_char_boundary(window.len() / 2);
    for border in ["\n\n", "\n", ". ", " "] {
        if let Some(at) = window[half..].rfind(border) {
            return half + at + border.len();
        }
    }
    window.len()
}

/// Where the next chunk begins: [`OVERLAP_CHARS`] before the end of this one, moved forward to the begin of a word.
fn overlap_start(chunk: &str) -> usize {
    let from = chunk.char_indices().rev().nth(OVERLAP_CHARS - 1).map_or(0, |(at, _)| at);
    chunk[from..].find(char::is_whitespace).map_or(from, |at| from + at)
}

/// The features of a text with their weights; one that occurs twice stands twice.
fn features(text: &str) -> Vec<(u64, f32)> {
    let mut features = Vec::with_capacity(text.len());
    for word in text.split(|c: char| !c.is_alphanumeric()) {
        let chars = word.chars().count();
        if !(2..=WORD_CHARS_MAX).contains(&chars) {
            continue;
        }
        let word = word.to_lowercase();
        if STOP_WORDS.binary_search(&word.as_str()).is_ok() {
            continue;
        }
        features.push((hash(b'w', word.as_bytes()), 1.0));
        if chars > NGRAM_CHARS {
            push_ngrams(&word, &mut features);
        }
    }
    features
}

fn push_ngrams(word: &str, features: &mut Vec<(u64, f32)>) {
    let starts: Vec<usize> = word.char_indices().map(|(at, _)| at).chain([word.len()]).collect();
    for bounds in starts.windows(NGRAM_CHARS + 1) {
        features.push((hash(b'n', &word.as_bytes()[bounds[0]..bounds[NGRAM_CHARS]]), NGRAM_WEIGHT));
    }
}

/// FNV-1a, finished by a multiplication that spreads it over the top bit (the sign) and the low ones (the bucket).
fn hash(of: u8, bytes: &[u8]) -> u64 {
    let mut hash = 0xcbf2_9ce4_8422_2325_u64;
    for &byte in [of].iter().chain(bytes) {
        hash = (hash ^ u64::from(byte)).wrapping_mul(0x0000_0100_0000_01b3);
    }
    (hash ^ (hash >> 32)).wrapping_mul(0x9e37_79b9_7f4a_7c15).rotate_left(24)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn cosine(a: &[f32], b: &[f32]) -> f32 {
        a.iter().zip(b).map(|(x, y)| x * y).sum()
    }

    #[test]
    fn markup_loses_tags_scripts_and_comments() {
        let page = "<html><STYLE>p {}</style><script>let a = '<b>';</SCRIPT><!-- <p>no --><p>One &lt;two&gt;</p>three";
        assert_eq!(extract("page.HTML", page.as_bytes()).trim(), "One <two>three");
        assert_eq!(extract("page.html", b"before <p class=\"open"), "before \n");
    }

    #[test]
    fn other_text_stays_as_it_is_without_nul() {
        assert_eq!(extract("lib.rs", b"Vec<u8>\0 &amp;"), "Vec<u8> &amp;");
        assert_eq!(extract("README", b"caf\xe9"), "caf\u{fffd}");
    }

    #[test]
    fn short_text_is_one_chunk_and_blank_text_none() {
        assert_eq!(split("  one line \n"), ["one line"]);
        assert_eq!(split(" \n\t "), Vec::<&str>::new());
    }

    #[test]
    fn chunks_end_at_paragraphs_and_overlap() {
        let paragraph = "word ".repeat(120); // 600 characters
        let text = format!("{}\n\n{}\n\n{}", paragraph.trim(), paragraph.trim(), paragraph.trim());
        let chunks = split(&text);
        assert_eq!(chunks[0], paragraph.trim());
        assert!(chunks.iter().all(|chunk| chunk.chars().count() <= CHUNK_CHARS));
        assert!(chunks[1].len() > paragraph.trim().len(), "the second begins with the end of the first");
    }

    #[test]
    fn every_character_is_in_some_chunk_whatever_the_text() {
        for text in ["x".repeat(5_000), "é".repeat(3_000), "ab\n".repeat(2_000), "🦀 crab. ".repeat(700)] {
            let chunks = split(&text);
            assert!(chunks.iter().all(|chunk| chunk.chars().count() <= CHUNK_CHARS && !chunk.is_empty()));
            let mut reached = 0;
            for chunk in chunks {
                let begin = chunk.as_ptr() as usize - text.as_ptr() as usize;
                assert!(text.get(reached..begin).is_none_or(|gap| gap.trim().is_empty()), "a gap before {begin}");
                reached = reached.max(begin + chunk.len());
            }
            assert_eq!(reached, text.trim_end().len());
        }
    }

    #[test]
    fn vectors_have_length_one_and_are_the_same_every_time() {
        for text in ["", "!!!", "durable jobs on PostgreSQL", &"long text ".repeat(100)] {
            let vector = vector(text);
            assert_eq!(vector.len(), DIMENSIONS);
            assert!((cosine(&vector, &vector) - 1.0).abs() < 1e-4, "{text}");
            assert_eq!(vector, super::vector(text));
        }
    }

    #[test]
    fn stop_words_are_sorted() {
        assert!(STOP_WORDS.is_sorted());
    }

    #[test]
    fn similar_texts_are_nearer_than_others() {
        let query = vector("a worker that lost its lease");
        let near = vector("The lease is the right of a worker to run the jobs. Workers that lose the lease stop.");
        let far = vector("Permission is hereby granted, free of charge, to any person obtaining a copy");
        assert!(cosine(&query, &near) > cosine(&query, &far) + 0.1);
    }
}
