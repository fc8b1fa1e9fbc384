//! What operations have in common in the OpenAPI document: their refusals, and how numbers are written down.

use std::collections::BTreeMap;
use utoipa::Number;
use utoipa::openapi::path::Operation;
use utoipa::openapi::schema::{KnownFormat, ObjectBuilder, Schema, SchemaFormat, SchemaType, Type};
use utoipa::openapi::{Content, ContentBuilder, OpenApi, Ref, RefOr, Required, ResponseBuilder};

const PROBLEM: &str = "Problem";

fn content() -> Content {
    ContentBuilder::new().schema(Some(Ref::from_schema_name(PROBLEM))).build()
}

fn text() -> ObjectBuilder {
    ObjectBuilder::new().schema_type(SchemaType::Type(Type::String))
}

/// Every operation can answer with a problem document.
pub fn add_problems(document: &mut OpenApi) {
    let problem = ObjectBuilder::new()
        .property("type", text())
        .property("title", text())
        .property("status", ObjectBuilder::new().schema_type(SchemaType::Type(Type::Integer)))
        .property("code", text())
        .property("detail", text())
        .required("type")
        .required("title")
        .required("status")
        .required("code")
        .required("detail")
        .build();
    let components = document.components.get_or_insert_default();
    components.schemas.insert(PROBLEM.into(), RefOr::T(problem.into()));
    for item in document.paths.paths.values_mut() {
        let operations = [&mut item.get, &mut item.put, &mut item.post, &mut item.delete, &mut item.patch];
        for operation in operations.into_iter().flatten() {
            add_default(operation);
            body_as_needed(operation, &components.schemas);
        }
    }
}

/// A number without a sign is not half as large as its format would say.
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

/// No body is an empty object: where everything has a default, none is needed.
fn body_as_needed(operation: &mut Operation, schemas: &BTreeMap<String, RefOr<Schema>>) {
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

fn add_default(operation: &mut Operation) {
    let refusal = ResponseBuilder::new()
        .description("A refusal: a problem document with a stable `code`")
        .content("application/problem+json", content())
        .build();
    operation.responses.responses.insert("default".into(), RefOr::T(refusal));
}

#[cfg(test)]
mod tests {
    #[test]
    fn the_document_is_a_contract() {
        let text = crate::router::openapi().to_pretty_json().unwrap();
        let path = concat!(env!("CARGO_MANIFEST_DIR"), "/openapi.json");
        if std::env::var_os("ATOLL_TEST_WRITE").is_some() {
            std::fs::write(path, &text).unwrap();
        }
        let stored = std::fs::read_to_string(path).unwrap_or_default();
        assert!(
            stored == text,
            "the API has changed: run `ATOLL_TEST_WRITE=1 cargo test -p atoll-server openapi` and review {path}"
        );
    }
}
