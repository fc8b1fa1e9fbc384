//! Parts of the OpenAPI document that all operations share: problem responses and number formats.

use std::collections::BTreeMap;
use utoipa::Number;
use utoipa::openapi::path::Operation;
use utoipa::openapi::schema::{KnownFormat, ObjectBuilder, Schema, SchemaFormat, SchemaType, Type};
use utoipa::openapi::{Content, ContentBuilder, OpenApi, Ref, RefOr, Required, ResponseBuilder};

const PROBLEM_SCHEMA: &str = "Problem";

fn problem_content() -> Content {
    ContentBuilder::new().schema(Some(Ref::from_schema_name(PROBLEM_SCHEMA))).build()
}

fn string_schema() -> ObjectBuilder {
    ObjectBuilder::new().schema_type(SchemaType::Type(Type::String))
}

/// Adds the problem response to every operation.
pub fn add_problems(document: &mut OpenApi) {
    let problem = ObjectBuilder::new()
        .property("type", string_schema())
        .property("title", string_schema())
        .property("status", ObjectBuilder::new().schema_type(SchemaType::Type(Type::Integer)))
        .property("code", string_schema())
        .property("detail", string_schema())
        .required("type")
        .required("title")
        .required("status")
        .required("code")
        .required("detail")
        .build();
    let components = document.components.get_or_insert_default();
    components.schemas.insert(PROBLEM_SCHEMA.into(), RefOr::T(problem.into()));
    for item in document.paths.paths.values_mut() {
        let operations = [&mut item.get, &mut item.put, &mut item.post, &mut item.delete, &mut item.patch];
        for operation in operations.into_iter().flatten() {
            add_problem_response(operation);
            mark_optional_body(operation, &components.schemas);
        }
    }
}

/// Documents unsigned 32-bit numbers as `uint32`: `int32` would halve their range.
pub fn widen_unsigned(document: &mut OpenApi) {
    let schemas = document.components.get_or_insert_default().schemas.values_mut();
    for schema in schemas {
        let RefOr::T(Schema::Object(object)) = schema else { continue };
        for property in object.properties.values_mut() {
            let RefOr::T(Schema::Object(number)) = property else { continue };
            let is_narrow = number.format == Some(SchemaFormat::KnownFormat(KnownFormat::Int32));
            if is_narrow && number.minimum.is_some() && number.maximum.is_none() {
                number.format = Some(SchemaFormat::Custom("uint32".to_owned()));
                number.maximum = Some(Number::from(u32::MAX));
            }
        }
    }
}

/// Marks the body as optional where all fields have defaults: no body means `{}`.
fn mark_optional_body(operation: &mut Operation, schemas: &BTreeMap<String, RefOr<Schema>>) {
    let Some(RefOr::T(body)) = &mut operation.request_body else { return };
    let Some(RefOr::T(content)) = body.content.get("application/json") else { return };
    let Some(RefOr::Ref(named)) = &content.schema else { return };
    let name = named.ref_location.rsplit('/').next().unwrap_or_default();
    if let Some(RefOr::T(Schema::Object(object))) = schemas.get(name)
        && object.required.is_empty()
    {
        body.required = Some(Required::False);
    }
}

fn add_problem_response(operation: &mut Operation) {
    let refusal = ResponseBuilder::new()
        .description("A problem document with a stable `code`")
        .content("application/problem+json", problem_content())
        .build();
    operation.responses.responses.insert("default".into(), RefOr::T(refusal));
}

#[cfg(test)]
mod tests {
    use serde_json::Value;
    use std::collections::BTreeSet;
    use std::path::{Path, PathBuf};

    #[test]
    fn operation_ids_are_unique() {
        let document = serde_json::to_value(crate::router::openapi_document()).unwrap();
        let operations = document["paths"].as_object().unwrap().values().flat_map(|item| item.as_object().unwrap());
        let mut ids: Vec<&str> = operations.filter_map(|(_, operation)| operation["operationId"].as_str()).collect();
        let count = ids.len();
        ids.sort_unstable();
        ids.dedup();
        assert_eq!(ids.len(), count);
    }

    /// Collects the names of the schemas that `value` refers to.
    fn collect_references(value: &Value, names: &mut BTreeSet<String>) {
        match value {
            Value::String(text) => names.extend(text.strip_prefix("#/components/schemas/").map(str::to_owned)),
            Value::Array(items) => items.iter().for_each(|item| collect_references(item, names)),
            Value::Object(fields) => fields.values().for_each(|field| collect_references(field, names)),
            _ => {}
        }
    }

    #[test]
    fn every_reference_has_a_schema_and_every_schema_a_reference() {
        let document = serde_json::to_value(crate::router::openapi_document()).unwrap();
        let mut references = BTreeSet::new();
        collect_references(&document, &mut references);
        let schemas: BTreeSet<String> =
            document["components"]["schemas"].as_object().unwrap().keys().cloned().collect();
        assert_eq!(references, schemas);
    }

    /// The document keeps one of two schemas with the same name, so every type with a schema has a name of its own.
    #[test]
    fn no_two_types_share_a_schema_name() {
        let mut seen = BTreeSet::new();
        let mut folders: Vec<PathBuf> = ["core", "api", "protocol", "server"]
            .map(|name| Path::new(env!("CARGO_MANIFEST_DIR")).join("..").join(name).join("src"))
            .into();
        while let Some(folder) = folders.pop() {
            for path in std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path()) {
                if path.is_dir() {
                    folders.push(path);
                    continue;
                }
                let text = std::fs::read_to_string(&path).unwrap();
                let mut has_schema = false;
                for line in text.lines() {
                    has_schema |= line.starts_with("#[") && line.contains("ToSchema");
                    let name = line.strip_prefix("pub struct ").or_else(|| line.strip_prefix("pub enum "));
                    if let Some(name) = name.and_then(|name| name.split([' ', '<', '(', ';']).next())
                        && std::mem::take(&mut has_schema)
                    {
                        assert!(seen.insert(name.to_owned()), "two types with a schema are named {name}");
                    }
                    assert!(!line.starts_with("#[") || !line.contains("schema(as"), "{line}: rename the type instead");
                }
            }
        }
        assert!(seen.contains("NewSandbox") && seen.contains("Heartbeat"));
    }

    /// Compares a generated file with the stored one; `ATOLL_TEST_WRITE` writes it first.
    fn check_stored_file(path: &str, text: &str) {
        if std::env::var_os("ATOLL_TEST_WRITE").is_some() {
            std::fs::write(path, text).unwrap();
        }
        let stored = std::fs::read_to_string(path).unwrap_or_default();
        assert!(
            stored == text,
            "the API has changed: run `ATOLL_TEST_WRITE=1 cargo test -p atoll-server openapi` and review {path}"
        );
    }

    #[test]
    fn matches_the_stored_document() {
        let text = crate::router::openapi_document().to_pretty_json().unwrap();
        check_stored_file(concat!(env!("CARGO_MANIFEST_DIR"), "/openapi.json"), &text);
    }

    #[test]
    fn the_page_of_events_is_current() {
        let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/events.md");
        check_stored_file(path, &atoll_api::events::reference_page());
    }
}
