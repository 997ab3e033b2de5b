//! An application in a list.

use super::OfferedProtocol;
use crate::control::operation::Flaw;
use crate::control::xml::Element;

/// An application that the user may launch.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Application {
    /// The identifier, which the client sends back to the letter.
    pub id: String,
    /// The name that people read.
    pub name: String,
    /// `remote` is the only one known.
    pub kind: Option<String>,
    /// An identifier that is one for the same application of several servers.
    pub origin_id: Option<String>,
    /// The application's version.
    pub version: Option<String>,
    /// Who made it.
    pub publisher: Option<String>,
    /// Its path on the machine where it runs.
    pub launch_path: Option<String>,
    /// Its icons.
    pub icons: Vec<Icon>,
    /// The files that it opens.
    pub file_types: RegisteredFileTypes,
    /// Whether one of its protocols is among those that the client supports.
    pub protocol_match: bool,
    /// The protocols by which it can be reached.
    pub protocols: Vec<OfferedProtocol>,
    /// Such as `DISABLED` or `ENABLED_DEFAULT_ON`.
    pub multi_session_mode: Option<String>,
    /// Whether browsers may not launch it.
    pub html_access_disabled: bool,
}

/// An icon, to be fetched from the server.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Icon {
    /// The path on the server.
    pub path: String,
    /// In pixels.
    pub width: u32,
    /// In pixels.
    pub height: u32,
}

/// The files that an application opens.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RegisteredFileTypes {
    /// By the ends of their names.
    pub extensions: Vec<FileType>,
    /// By other marks; [`FileType::kind`] says which.
    pub others: Vec<FileType>,
}

/// A kind of file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FileType {
    /// For other marks than the end of the name: which.
    pub kind: Option<String>,
    /// The mark.
    pub name: String,
    /// What people call it.
    pub display_name: Option<String>,
}

impl Application {
    pub(super) fn read(element: &Element) -> Result<Self, Flaw> {
        let icons = element.child("icons").into_iter().flat_map(|icons| icons.named("icon"));
        let file_types = element.child("registered-file-types").map(RegisteredFileTypes::read);
        Ok(Self {
            id: element.required("id")?,
            name: element.string("name"),
            kind: element.optional_word("type"),
            origin_id: element.optional("origin-id"),
            version: element.optional("version"),
            publisher: element.optional("publisher"),
            launch_path: element.optional("launch-path"),
            icons: icons.map(Icon::read).collect::<Result<_, _>>()?,
            file_types: file_types.unwrap_or_default(),
            protocol_match: element.flag("protocol-match"),
            protocols: OfferedProtocol::read_all(element),
            multi_session_mode: element.optional_word("multi-session-mode"),
            html_access_disabled: element.child("html-access-disabled").is_some(),
        })
    }

    pub(super) fn write(&self) -> Element {
        let mut element = Element::new("application");
        let out = &mut element;
        out.push_leaf("id", &self.id);
        out.push_leaf("name", &self.name);
        out.push_optional("type", self.kind.as_deref());
        out.push_optional("origin-id", self.origin_id.as_deref());
        out.push_optional("version", self.version.as_deref());
        out.push_optional("publisher", self.publisher.as_deref());
        out.push_optional("launch-path", self.launch_path.as_deref());
        let mut icons = Element::new("icons");
        for icon in &self.icons {
            icons.push(icon.write());
        }
        out.push(icons);
        out.push(self.file_types.write());
        out.push_flag("protocol-match", self.protocol_match);
        OfferedProtocol::write_all(&self.protocols, out);
        out.push_optional("multi-session-mode", self.multi_session_mode.as_deref());
        if self.html_access_disabled {
            out.push_flag("html-access-disabled", true);
        }
        element
    }
}

impl Icon {
    fn read(element: &Element) -> Result<Self, Flaw> {
        Ok(Self {
            path: element.required("path")?,
            width: element.number("width")?.unwrap_or_default(),
            height: element.number("height")?.unwrap_or_default(),
        })
    }

    fn write(&self) -> Element {
        let mut element = Element::new("icon");
        element.push_leaf("path", &self.path);
        element.push_number("width", Some(self.width));
        element.push_number("height", Some(self.height));
        element
    }
}

impl RegisteredFileTypes {
    fn read(element: &Element) -> Self {
        Self {
            extensions: element.named("file-extension").map(FileType::read).collect(),
            others: element.named("other-file-type").map(FileType::read).collect(),
        }
    }

    fn write(&self) -> Element {
        let mut element = Element::new("registered-file-types");
        for file_type in &self.extensions {
            element.push(file_type.write("file-extension"));
        }
        for file_type in &self.others {
            element.push(file_type.write("other-file-type"));
        }
        element
    }
}

impl FileType {
    fn read(element: &Element) -> Self {
        Self {
            kind: element.optional_word("type"),
            name: element.string("name"),
            display_name: element.optional("display-name"),
        }
    }

    fn write(&self, name: &str) -> Element {
        let mut element = Element::new(name);
        element.push_optional("type", self.kind.as_deref());
        element.push_leaf("name", &self.name);
        element.push_optional("display-name", self.display_name.as_deref());
        element
    }
}
