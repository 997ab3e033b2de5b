//! The schema of the file.

use schemars::JsonSchema;
use schemars::generate::SchemaSettings;

/// The JSON Schema of `T`, as a file of TOML has it.
pub(super) fn of<T: JsonSchema>() -> serde_json::Value {
    let settings = SchemaSettings::draft2020_12().with(|settings| settings.inline_subschemas = true);
    let mut schema = settings.into_generator().into_root_schema_for::<T>().to_value();
    without_null(&mut schema);
    schema
}

/// TOML has no null: an absent setting is absent.
fn without_null(schema: &mut serde_json::Value) {
    match schema {
        serde_json::Value::Object(members) => {
            members.retain(|name, member| !(name == "default" && member.is_null()));
            if let Some(serde_json::Value::Array(types)) = members.get_mut("type") {
                types.retain(|of| of != "null");
                if let [only] = types.as_slice() {
                    let only = only.clone();
                    members.insert("type".to_owned(), only);
                }
            }
            without_null_choice(members);
            members.values_mut().for_each(without_null);
        }
        serde_json::Value::Array(elements) => elements.iter_mut().for_each(without_null),
        serde_json::Value::Null
        | serde_json::Value::Bool(_)
        | serde_json::Value::Number(_)
        | serde_json::Value::String(_) => {}
    }
}

/// A choice between something and null is just that something.
fn without_null_choice(members: &mut serde_json::Map<String, serde_json::Value>) {
    let Some(serde_json::Value::Array(choices)) = members.get_mut("anyOf") else {
        return;
    };
    choices.retain(|choice| choice["type"] != "null");
    if let [serde_json::Value::Object(only)] = choices.as_mut_slice() {
        let only = std::mem::take(only);
        members.remove("anyOf");
        for (name, member) in only {
            members.entry(name).or_insert(member);
        }
    }
}
