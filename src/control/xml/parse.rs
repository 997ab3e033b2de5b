//! Text to tree: the strict wrapper around the event reader.
//!
//! The event reader finds where markup ends; it is lax about nearly everything else. What XML demands and it does not
//! check, is checked here. In particular it reports text, references and CDATA apart, and a password with an
//! ampersand in it comes in three events: they are joined here.

mod declaration;
mod tag;

use quick_xml::Reader;
use quick_xml::errors::{Error as ReaderError, IllFormedError};
use quick_xml::events::Event;

pub(in crate::control) use declaration::Declaration;

use super::{Element, Error, ErrorKind, Limits, Node, Position, chars};

/// Parses a document.
///
/// A document type definition is refused before any of it is read, and so is whatever exceeds `limits`, at the place
/// where it does: the work done is proportional to the text read until then, which is at most `limits.bytes`.
///
/// Line ends are normalised as XML demands (a CR LF or CR that was not written as a reference becomes LF). Comments
/// and processing instructions leave no trace.
///
/// # Errors
///
/// The first thing that is wrong, and where.
pub fn parse(text: &str, limits: &Limits) -> Result<Element, Error> {
    let mut parser = Parser::new(text, limits);
    parser.run().map_err(|Fault(kind, offset)| Error {
        kind,
        at: Position::find(text, offset),
    })
}

/// What is wrong, and after how many octets of the text.
struct Fault(ErrorKind, usize);

struct Parser<'a> {
    text: &'a str,
    limits: &'a Limits,
    reader: Reader<&'a [u8]>,
    /// The elements not yet closed, outermost first.
    open: Vec<Element>,
    root: Option<Element>,
    elements: usize,
    attributes: usize,
}

impl<'a> Parser<'a> {
    fn new(text: &'a str, limits: &'a Limits) -> Self {
        let mut reader = Reader::from_str(text);
        reader.config_mut().enable_all_checks(true);
        Self {
            text,
            limits,
            reader,
            open: Vec::new(),
            root: None,
            elements: 0,
            attributes: 0,
        }
    }

    fn run(&mut self) -> Result<Element, Fault> {
        if self.text.len() > self.limits.bytes {
            return Err(Fault(
                ErrorKind::TooLarge {
                    limit: self.limits.bytes,
                },
                0,
            ));
        }
        self.refuse_illegal_characters()?;
        loop {
            let start = self.position();
            self.refuse_declarations(start)?;
            let event = self
                .reader
                .read_event()
                .map_err(|error| Fault(kind_of(&error), start))?;
            let raw = &self.text[start..self.position()];
            match event {
                Event::Start(_) => self.start(raw, start)?,
                Event::Empty(_) => {
                    self.start(raw, start)?;
                    self.end(start)?;
                }
                Event::End(_) => self.end(start)?,
                Event::Text(_) => self.characters(raw, start)?,
                Event::GeneralRef(_) => self.reference(raw, start)?,
                Event::CData(section) => self.append(&unix_lines(&section), start)?,
                Event::Comment(_) => {}
                Event::PI(instruction) => check_instruction(instruction.target(), start)?,
                Event::Decl(_) if start == 0 => {
                    Declaration::parse(raw).map_err(|offset| Fault(ErrorKind::BadDeclaration, offset))?;
                }
                Event::Decl(_) => return Err(Fault(ErrorKind::BadDeclaration, start)),
                Event::DocType(_) => return Err(Fault(ErrorKind::DocumentType, start)),
                Event::Eof => return self.finish(),
            }
        }
    }

    /// Octets of the text that the reader has taken.
    fn position(&self) -> usize {
        usize::try_from(self.reader.buffer_position()).unwrap_or(self.text.len())
    }

    /// Looks at the whole text once, so that no later step need think of control characters.
    fn refuse_illegal_characters(&self) -> Result<(), Fault> {
        // The reader would take a byte order mark away in silence; whoever decoded the octets has removed the real one.
        if self.text.starts_with('\u{feff}') {
            return Err(Fault(ErrorKind::TextOutsideRoot, 0));
        }
        match self.text.char_indices().find(|&(_, c)| !chars::is_char(c)) {
            Some((offset, c)) => Err(Fault(ErrorKind::IllegalCharacter { code: c.into() }, offset)),
            None => Ok(()),
        }
    }

    /// Refuses `<!…` other than comments and CDATA before the reader looks into it.
    fn refuse_declarations(&self, start: usize) -> Result<(), Fault> {
        let rest = &self.text[start..];
        if !rest.starts_with("<!") || rest.starts_with("<!--") || rest.starts_with("<![CDATA[") {
            return Ok(());
        }
        let is_doctype = rest.get(2..9).is_some_and(|word| word.eq_ignore_ascii_case("DOCTYPE"));
        Err(Fault(
            if is_doctype {
                ErrorKind::DocumentType
            } else {
                ErrorKind::BadMarkup
            },
            start,
        ))
    }

    fn start(&mut self, raw: &str, start: usize) -> Result<(), Fault> {
        let limits = self.limits;
        if self.open.is_empty() && self.root.is_some() {
            return Err(Fault(ErrorKind::SecondRoot, start));
        }
        if self.open.len() >= limits.depth {
            return Err(Fault(ErrorKind::TooDeep { limit: limits.depth }, start));
        }
        self.elements += 1;
        if self.elements > limits.elements {
            return Err(Fault(ErrorKind::TooManyElements { limit: limits.elements }, start));
        }
        let element = tag::parse(raw, limits).map_err(|Fault(kind, offset)| Fault(kind, start + offset))?;
        self.attributes += element.attributes.len();
        if self.attributes > limits.total_attributes {
            return Err(Fault(
                ErrorKind::TooManyAttributes {
                    limit: limits.total_attributes,
                },
                start,
            ));
        }
        self.open.push(element);
        Ok(())
    }

    /// Closes the innermost element. That the names match, the reader has checked.
    fn end(&mut self, start: usize) -> Result<(), Fault> {
        let element = self.open.pop().ok_or(Fault(ErrorKind::MismatchedEnd, start))?;
        match self.open.last_mut() {
            Some(parent) => parent.push(element),
            None => self.root = Some(element),
        }
        Ok(())
    }

    fn characters(&mut self, raw: &str, start: usize) -> Result<(), Fault> {
        if self.open.is_empty() {
            return match raw.find(|c| !chars::is_space(c)) {
                Some(offset) => Err(Fault(ErrorKind::TextOutsideRoot, start + offset)),
                None => Ok(()),
            };
        }
        if let Some(offset) = raw.find("]]>") {
            return Err(Fault(ErrorKind::CdataEnd, start + offset));
        }
        self.append(&unix_lines(raw), start)
    }

    fn reference(&mut self, raw: &str, start: usize) -> Result<(), Fault> {
        let name = raw
            .strip_prefix('&')
            .and_then(|raw| raw.strip_suffix(';'))
            .unwrap_or_default();
        let c = resolve(name).map_err(|kind| Fault(kind, start))?;
        self.append(c.encode_utf8(&mut [0; 4]), start)
    }

    /// Adds to the run of text that is under way in the innermost element, or begins one.
    fn append(&mut self, piece: &str, start: usize) -> Result<(), Fault> {
        let limit = self.limits.text;
        let element = self.open.last_mut().ok_or(Fault(ErrorKind::TextOutsideRoot, start))?;
        let before = match element.children.last() {
            Some(Node::Text(text)) => text.len(),
            Some(Node::Element(_)) | None => 0,
        };
        if before + piece.len() > limit {
            return Err(Fault(ErrorKind::TextTooLong { limit }, start));
        }
        match element.children.last_mut() {
            Some(Node::Text(text)) => text.push_str(piece),
            Some(Node::Element(_)) | None if piece.is_empty() => {}
            Some(Node::Element(_)) | None => element.children.push(Node::Text(piece.to_owned())),
        }
        Ok(())
    }

    fn finish(&mut self) -> Result<Element, Fault> {
        if !self.open.is_empty() {
            return Err(Fault(ErrorKind::UnclosedElement, self.text.len()));
        }
        self.root.take().ok_or(Fault(ErrorKind::NoRoot, self.text.len()))
    }
}

/// The character that a reference stands for; `name` is what is between `&` and `;`.
fn resolve(name: &str) -> Result<char, ErrorKind> {
    let Some(number) = name.strip_prefix('#') else {
        return match name {
            "amp" => Ok('&'),
            "lt" => Ok('<'),
            "gt" => Ok('>'),
            "quot" => Ok('"'),
            "apos" => Ok('\''),
            name if chars::is_name(name) => Err(ErrorKind::UnknownEntity),
            _ => Err(ErrorKind::LoneAmpersand),
        };
    };
    let (digits, radix) = match number.strip_prefix('x') {
        Some(hex) => (hex, 16),
        None => (number, 10),
    };
    // from_str_radix would take a sign.
    if digits.is_empty() || !digits.chars().all(|c| c.is_digit(radix)) {
        return Err(ErrorKind::BadReference);
    }
    let code = u32::from_str_radix(digits, radix).map_err(|_| ErrorKind::BadReference)?;
    char::from_u32(code)
        .filter(|&c| chars::is_char(c))
        .ok_or(ErrorKind::BadReference)
}

/// The text with line ends as XML demands them: LF for CR LF and for a CR alone.
fn unix_lines(raw: &str) -> std::borrow::Cow<'_, str> {
    if raw.contains('\r') {
        raw.replace("\r\n", "\n").replace('\r', "\n").into()
    } else {
        raw.into()
    }
}

fn check_instruction(target: &str, start: usize) -> Result<(), Fault> {
    if chars::is_name(target) && !target.eq_ignore_ascii_case("xml") {
        Ok(())
    } else {
        Err(Fault(ErrorKind::BadInstruction, start))
    }
}

/// Our word for the reader's error. Its own words may repeat text of the document.
fn kind_of(error: &ReaderError) -> ErrorKind {
    match error {
        ReaderError::Syntax(_) => ErrorKind::UnclosedMarkup,
        ReaderError::IllFormed(IllFormedError::MismatchedEndTag { .. } | IllFormedError::UnmatchedEndTag(_)) => {
            ErrorKind::MismatchedEnd
        }
        ReaderError::IllFormed(IllFormedError::UnclosedReference) => ErrorKind::LoneAmpersand,
        ReaderError::IllFormed(_)
        | ReaderError::Io(_)
        | ReaderError::InvalidAttr(_)
        | ReaderError::Encoding(_)
        | ReaderError::Escape(_)
        | ReaderError::Namespace(_) => ErrorKind::BadMarkup,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parsed(text: &str) -> Result<Element, ErrorKind> {
        parse(text, &Limits::default()).map_err(|error| error.kind)
    }

    fn text_of(inside: &str) -> String {
        parsed(&format!("<a>{inside}</a>")).unwrap().text().to_owned()
    }

    fn fault(text: &str) -> ErrorKind {
        parsed(text).unwrap_err()
    }

    #[test]
    fn text_references_and_cdata_make_one_run() {
        assert_eq!(
            text_of("a&amp;b<![CDATA[<&]]>c&#x1F980;&#100;<!-- x -->e<?p i?>f"),
            "a&b<&c🦀def"
        );
        assert_eq!(parsed("<a>x<!-- --><![CDATA[]]>y</a>").unwrap().children.len(), 1);
        assert_eq!(parsed("<a><![CDATA[]]></a>").unwrap().children.len(), 0);
    }

    #[test]
    fn a_password_arrives_as_it_was_typed() {
        for (written, typed) in [
            ("&amp;&lt;&gt;&quot;&apos;", "&<>\"'"),
            ("]]&gt;", "]]>"),
            ("<![CDATA[]]]]><![CDATA[>]]>", "]]>"),
            ("  two blanks around  ", "  two blanks around  "),
            (" ", " "),
            ("äöüß€", "äöüß€"),
            ("e\u{301}", "e\u{301}"),
            ("👩\u{200d}🔧", "👩\u{200d}🔧"),
            ("a&#13;b&#10;c&#9;d", "a\rb\nc\td"),
            ("&#13;&#10;", "\r\n"),
            ("&#x26;amp;", "&amp;"),
            ("<![CDATA[&amp;]]>", "&amp;"),
        ] {
            assert_eq!(text_of(written), typed);
        }
    }

    #[test]
    fn line_ends_become_line_feeds_unless_they_are_references() {
        assert_eq!(text_of("a\r\nb\rc\nd\r\r\n"), "a\nb\nc\nd\n\n");
        assert_eq!(text_of("<![CDATA[a\r\nb]]>"), "a\nb");
        assert_eq!(text_of("&#13;\n"), "\r\n");
    }

    #[test]
    fn any_document_type_is_refused_before_it_is_read() {
        for text in [
            "<!DOCTYPE a><a/>",
            "<!doctype a><a/>",
            "<!DOCTYPE a [<!ENTITY x SYSTEM 'file:///etc/passwd'>]><a>&x;</a>",
            "<?xml version='1.0'?>\n<!DOCTYPE a [<!ENTITY a0 'x'><!ENTITY a1 '&a0;&a0;'>]><a>&a1;</a>",
            "<!DOCTYPE a [",
            "<a/><!DOCTYPE a>",
            "<a><!DOCTYPE a></a>",
        ] {
            assert_eq!(fault(text), ErrorKind::DocumentType, "{text}");
        }
        assert_eq!(fault("<!ELEMENT a><a/>"), ErrorKind::BadMarkup);
        assert_eq!(fault("<!><a/>"), ErrorKind::BadMarkup);
        assert_eq!(fault("<a><![cdata[x]]></a>"), ErrorKind::BadMarkup);
    }

    #[test]
    fn only_the_five_predefined_entities_are_known() {
        for text in ["<a>&x;</a>", "<a>&nbsp;</a>", "<a b='&x;'/>", "<a>&AMP;</a>"] {
            assert_eq!(fault(text), ErrorKind::UnknownEntity, "{text}");
        }
        for text in [
            "<a>a & b</a>",
            "<a>&</a>",
            "<a>&amp</a>",
            "<a>&;</a>",
            "<a b='&'/>",
            "<a>&a&amp;</a>",
        ] {
            assert_eq!(fault(text), ErrorKind::LoneAmpersand, "{text}");
        }
    }

    #[test]
    fn references_stand_for_characters_that_xml_allows() {
        for name in [
            "#0",
            "#x0",
            "#1",
            "#xB",
            "#xD800",
            "#xDFFF",
            "#xFFFE",
            "#xFFFF",
            "#x110000",
            "#99999999999",
            "#",
            "#x",
        ] {
            assert_eq!(fault(&format!("<a>&{name};</a>")), ErrorKind::BadReference, "{name}");
        }
        for name in ["#-1", "#+65", "#xg", "#X41", "# 65", "#6٥"] {
            assert_eq!(fault(&format!("<a>&{name};</a>")), ErrorKind::BadReference, "{name}");
        }
        assert_eq!(text_of("&#0065;&#x00041;&#xFFFD;&#x10FFFF;"), "AA\u{fffd}\u{10ffff}");
    }

    #[test]
    fn control_characters_are_refused_wherever_they_stand() {
        for c in ['\0', '\u{1}', '\u{b}', '\u{c}', '\u{1f}', '\u{fffe}', '\u{ffff}'] {
            for text in [
                format!("<a>{c}</a>"),
                format!("<a b='{c}'/>"),
                format!("<!--{c}--><a/>"),
            ] {
                assert_eq!(fault(&text), ErrorKind::IllegalCharacter { code: c.into() });
            }
        }
    }

    #[test]
    fn there_is_one_root_and_nothing_but_remarks_around_it() {
        assert!(parsed("<?xml version='1.0'?>\n<!-- a -->\n<?p i?>\n<a/>\n<!-- b --><?p?>\n ").is_ok());
        assert_eq!(fault("<a/><b/>"), ErrorKind::SecondRoot);
        assert_eq!(fault("<a></a><a>"), ErrorKind::SecondRoot);
        assert_eq!(fault(""), ErrorKind::NoRoot);
        assert_eq!(fault("<!-- a -->"), ErrorKind::NoRoot);
        for text in [
            "x<a/>",
            "<a/>x",
            "<a/>&#32;",
            "<![CDATA[x]]><a/>",
            "<a/><![CDATA[]]>",
            "\u{feff}<a/>",
            "\u{a0}<a/>",
        ] {
            assert_eq!(fault(text), ErrorKind::TextOutsideRoot, "{text}");
        }
    }

    #[test]
    fn tags_that_do_not_match_are_an_error() {
        // A known client writes its global preferences like this.
        let text = "<broker version='4.5'><set-user-global-preferences><user-preferences>\
                    <preference name='x'>1</preference></user-global-preferences></broker>";
        assert_eq!(fault(text), ErrorKind::MismatchedEnd);
        for text in [
            "</a>",
            "<a></b>",
            "<a><b></a></b>",
            "<a></A>",
            "<a/></a>",
            "<a></a x='1'>",
            "<a></ a>",
            "<a></>",
        ] {
            assert_eq!(fault(text), ErrorKind::MismatchedEnd, "{text}");
        }
        assert!(parsed("<a></a >").is_ok());
    }

    #[test]
    fn what_is_not_closed_is_an_error() {
        for text in [
            "<a",
            "<",
            "<a b='",
            "<a><!--",
            "<a><![CDATA[x]]",
            "<a><?p",
            "<?xml",
            "<a></a",
            "<!-->",
            "<!--->",
        ] {
            assert_eq!(fault(text), ErrorKind::UnclosedMarkup, "{text}");
        }
        assert_eq!(fault("<a><b></b>"), ErrorKind::UnclosedElement);
    }

    #[test]
    fn markup_that_the_reader_would_let_pass_is_refused() {
        assert_eq!(fault("<a>]]></a>"), ErrorKind::CdataEnd);
        assert_eq!(fault("<a><!-- -- --></a>"), ErrorKind::BadMarkup);
        for text in [
            "<a><b c></b></a>",
            "<a b></a>",
            "<a b=c></a>",
            "<a b='1'c='2'/>",
            "<a b='<'/>",
            "<a b='1'/ >",
        ] {
            assert!(
                matches!(fault(text), ErrorKind::BadAttribute | ErrorKind::BadName),
                "{text}"
            );
        }
        for text in ["<1/>", "< a/>", "<a <b/>", "<a$/>", "<a '/>'/>", "<>", "</", "<a =''/>"] {
            let kind = fault(text);
            assert!(
                matches!(kind, ErrorKind::BadName | ErrorKind::UnclosedMarkup),
                "{text} {kind:?}"
            );
        }
        for text in ["<??><a/>", "<? p?><a/>", "<a><?xml?></a>", "<a/><?XML?>", "<?1?><a/>"] {
            let kind = fault(text);
            assert!(
                matches!(kind, ErrorKind::BadInstruction | ErrorKind::BadDeclaration),
                "{text} {kind:?}"
            );
        }
    }

    #[test]
    fn the_declaration_stands_at_the_start_and_is_of_version_1_0() {
        for text in [
            "<?xml version=\"1.0\"?><a/>",
            "<?xml version = '1.0' encoding='UTF-8'  standalone=\"yes\" ?><a/>",
            "<?xml version='1.0' standalone='no'?><a/>",
        ] {
            assert!(parsed(text).is_ok(), "{text}");
        }
        for text in [
            " <?xml version='1.0'?><a/>",
            "<?xml version='1.0'?><?xml version='1.0'?><a/>",
            "<?xml version='1.1'?><a/>",
            "<?xml?><a/>",
            "<?xml encoding='UTF-8'?><a/>",
            "<?xml version='1.0' encoding=''?><a/>",
            "<?xml version='1.0' encoding='8bit'?><a/>",
            "<?xml version='1.0'encoding='UTF-8'?><a/>",
            "<?xml version='1.0' standalone='yes' encoding='UTF-8'?><a/>",
            "<?xml version='1.0' standalone='maybe'?><a/>",
            "<?xml version='1.0\"?><a/>",
            "<?xml version='1.0' x='y'?><a/>",
        ] {
            assert_eq!(fault(text), ErrorKind::BadDeclaration, "{text}");
        }
    }

    #[test]
    fn attributes_are_read_and_normalised() {
        let root = parsed("<a b = '1 &amp;\t\r\n2' c:d=\"&#10;'\"/>").unwrap();
        assert_eq!(root.attribute("B"), Some("1 &  2"));
        assert_eq!(root.attribute("c:d"), Some("\n'"));
        assert_eq!(fault("<a b='1' b='2'/>"), ErrorKind::DuplicateAttribute);
    }

    #[test]
    fn an_error_says_where_and_never_what() {
        let text = "<a>\n  <value>hunter2<2ab>x</value>\n</a>";
        let error = parse(text, &Limits::default()).unwrap_err();
        assert_eq!((error.at.line, error.at.column, error.at.offset), (2, 18, 21));
        assert_eq!(error.to_string(), "line 2, column 18: a name that is not an XML name");

        let secret = "geheim";
        for text in [
            format!("<a><{secret}></a>"),
            format!("<a>&{secret};</a>"),
            format!("<a></{secret}>"),
            format!("<a {secret}='1' {secret}='1'/>"),
            format!("<?xml version='{secret}'?><a/>"),
            format!("<a/>{secret}"),
            format!("<!{secret}>"),
            format!("<?xml {secret}?>"),
            format!("<a><![{secret}"),
        ] {
            let error = parse(&text, &Limits::default()).unwrap_err();
            assert!(!format!("{error} {error:?}").contains(secret), "{text}");
        }
    }

    mod limits {
        use super::*;

        fn fault_within(limits: Limits, text: &str) -> (ErrorKind, usize) {
            let error = parse(text, &limits).unwrap_err();
            (error.kind, error.at.offset)
        }

        const WIDE: Limits = Limits {
            bytes: usize::MAX,
            depth: 4,
            elements: 10,
            attributes: 3,
            total_attributes: 5,
            text: 8,
        };

        #[test]
        fn each_limit_can_be_reached_and_not_passed() {
            let nested = |depth: usize| format!("{}{}", "<a>".repeat(depth), "</a>".repeat(depth));
            assert!(parse(&nested(4), &WIDE).is_ok());
            assert_eq!(fault_within(WIDE, &nested(5)), (ErrorKind::TooDeep { limit: 4 }, 12));

            let wide = |elements: usize| format!("<r>{}</r>", "<a/>".repeat(elements - 1));
            assert!(parse(&wide(10), &WIDE).is_ok());
            assert_eq!(
                fault_within(WIDE, &wide(11)),
                (ErrorKind::TooManyElements { limit: 10 }, 39)
            );

            assert!(parse("<a b='' c='' d=''/>", &WIDE).is_ok());
            assert_eq!(
                fault_within(WIDE, "<a b='' c='' d='' e=''/>"),
                (ErrorKind::TooManyAttributes { limit: 3 }, 18)
            );

            assert!(parse("<a b='' c='' d=''><a b='' c=''/></a>", &WIDE).is_ok());
            let text = "<a b='' c='' d=''><a b='' c=''/><a b=''/></a>";
            assert_eq!(
                fault_within(WIDE, text),
                (ErrorKind::TooManyAttributes { limit: 5 }, 32)
            );

            assert!(parse("<a b='12345678'>1234&#53;<![CDATA[6]]>78</a>", &WIDE).is_ok());
            assert_eq!(
                fault_within(WIDE, "<a>1234&#53;<![CDATA[6]]>789</a>").0,
                ErrorKind::TextTooLong { limit: 8 }
            );
            assert_eq!(
                fault_within(WIDE, "<a b='123456789'/>").0,
                ErrorKind::TextTooLong { limit: 8 }
            );

            let limits = Limits {
                bytes: 4,
                ..Limits::default()
            };
            assert!(parse("<a/>", &limits).is_ok());
            assert_eq!(fault_within(limits, "<ab/>").0, ErrorKind::TooLarge { limit: 4 });
        }

        // Were any of these not refused at the limit, the debug build of the tests would take minutes, or its stack end.
        #[test]
        fn a_million_nested_elements_are_refused_at_the_limit() {
            let text = "<a>".repeat(1_000_000);
            let limits = Limits {
                bytes: usize::MAX,
                ..Limits::default()
            };
            assert_eq!(fault_within(limits, &text), (ErrorKind::TooDeep { limit: 32 }, 96));
        }

        #[test]
        fn a_hundred_thousand_attributes_are_refused_at_the_limit() {
            let attributes: String = (0..100_000).map(|n| format!(" a{n}=''")).collect();
            let limits = Limits {
                bytes: usize::MAX,
                ..Limits::default()
            };
            let (kind, offset) = fault_within(limits, &format!("<a{attributes}/>"));
            assert_eq!(kind, ErrorKind::TooManyAttributes { limit: 16 });
            assert!(offset < 200);
        }

        #[test]
        fn a_flood_of_references_stays_within_the_text_limit() {
            let text = format!("<a>{}</a>", "&amp;".repeat(50_000));
            assert_eq!(parsed(&text).unwrap().text().len(), 50_000);
            let text = format!("<a>{}</a>", "&#x1F980;".repeat(25_000));
            assert_eq!(fault(&text), ErrorKind::TextTooLong { limit: 65_536 });
            let text = format!("<a>{}</a>", "&lol;".repeat(50_000));
            assert_eq!(fault_within(Limits::default(), &text), (ErrorKind::UnknownEntity, 3));
        }
    }
}
