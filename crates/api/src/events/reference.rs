//! The catalogue as schemas of the OpenAPI document, and as the page `docs/events.md`.

use super::{EVENT_KINDS, data_schemas, examples};
use atoll_core::event::Event;
use serde_json::Value;
use std::fmt::Write;
use utoipa::openapi::schema::{AnyOfBuilder, Discriminator, Schema, SchemaType, Type};
use utoipa::openapi::{AllOfBuilder, ObjectBuilder, OneOfBuilder, OpenApi, Ref, RefOr};
use utoipa::{PartialSchema, ToSchema};

const EVENT_SCHEMA: &str = "Event";
const TYPED_EVENT_SCHEMA: &str = "TypedEvent";

/// The schema of one type's data, with the schemas that it refers to.
pub(super) struct DataSchema {
    name: String,
    schema: RefOr<Schema>,
    others: Vec<(String, RefOr<Schema>)>,
}

impl DataSchema {
    pub(super) fn of<T: ToSchema>() -> Self {
        let mut others = Vec::new();
        T::schemas(&mut others);
        Self { name: T::name().into_owned(), schema: T::schema(), others }
    }
}

/// The schema of an event in a response: a typed event, or an event of another type.
#[derive(Debug)]
pub struct AnyEvent;

impl PartialSchema for AnyEvent {
    fn schema() -> RefOr<Schema> {
        let any_of = AnyOfBuilder::new().description(Some("An event of a known type, or of another type."));
        let names = [TYPED_EVENT_SCHEMA, EVENT_SCHEMA];
        names.into_iter().fold(any_of, |any_of, name| any_of.item(Ref::from_schema_name(name))).into()
    }
}

impl ToSchema for AnyEvent {
    fn schemas(schemas: &mut Vec<(String, RefOr<Schema>)>) {
        schemas.push((Event::name().into_owned(), Event::schema()));
        Event::schemas(schemas);
    }
}

/// Adds a schema per event type, and `TypedEvent`, which is one of them by its `type`.
pub fn add_event_schemas(document: &mut OpenApi) {
    let schemas = &mut document.components.get_or_insert_default().schemas;
    let mut one_of = OneOfBuilder::new()
        .description(Some("An event of a known type. Events of other types have the schema `Event`."));
    let mut mapping = Vec::new();
    for (kind, data) in EVENT_KINDS.iter().zip(data_schemas()) {
        let event_type =
            ObjectBuilder::new().schema_type(SchemaType::Type(Type::String)).enum_values(Some([kind.event_type]));
        let fields = ObjectBuilder::new()
            .property("type", event_type)
            .property("data", Ref::from_schema_name(&data.name))
            .required("type")
            .required("data");
        let event = AllOfBuilder::new()
            .description(Some(kind.description))
            .item(Ref::from_schema_name(EVENT_SCHEMA))
            .item(fields.build())
            .build();
        let name = format!("{}Event", kind.variant);
        one_of = one_of.item(Ref::from_schema_name(&name));
        mapping.push((kind.event_type, format!("#/components/schemas/{name}")));
        schemas.insert(name, RefOr::T(event.into()));
        for (name, schema) in data.others.into_iter().chain([(data.name, data.schema)]) {
            schemas.entry(name).or_insert(schema);
        }
    }
    let one_of = one_of.discriminator(Some(Discriminator::with_mapping("type", mapping))).build();
    schemas.insert(TYPED_EVENT_SCHEMA.to_owned(), RefOr::T(one_of.into()));
}

/// The page `docs/events.md`.
pub fn reference_page() -> String {
    let mut page = String::from(
        "# Events\n\n\
         Every event that Atoll emits, with the fields of its `data`. The OpenAPI document has the same as schemas: see\n\
         `TypedEvent`. In Rust, `atoll_api::events::EventData` has a variant for each.\n\n\
         Agents and workers may send other types; Atoll stores and shows them like these. Ignore fields that you do not know.\n\n\
         This page is generated from the catalogue. To update it, run\n\
         `ATOLL_TEST_WRITE=1 cargo test -p atoll-server openapi`.\n",
    );
    let mut area = "";
    for (kind, data) in EVENT_KINDS.iter().zip(data_schemas()) {
        let first = kind.event_type.split('.').next().unwrap_or_default();
        if first != area {
            area = first;
            let _ = write!(page, "\n## {area}\n");
        }
        let _ = write!(page, "\n### `{}`\n\n{}\n\n", kind.event_type, kind.description);
        let fields = fields_of(&data);
        if fields.is_empty() {
            page.push_str("No fields.\n");
            continue;
        }
        page.push_str("| field | type | |\n|---|---|---|\n");
        for field in fields {
            let _ = writeln!(page, "| `{}` | {} | {} |", field.name, field.type_name, field.description);
        }
        if let Some((_, json)) = examples::EXAMPLES.iter().find(|(event_type, _)| *event_type == kind.event_type) {
            let _ = write!(page, "\n```json\n{json}\n```\n");
        }
    }
    page
}

struct DataField {
    name: String,
    type_name: String,
    description: String,
}

/// The fields of a schema, including those of flattened structs.
fn fields_of(data: &DataSchema) -> Vec<DataField> {
    let mut fields = Vec::new();
    add_fields(&data.schema, &data.others, &mut fields);
    fields
}

fn add_fields(schema: &RefOr<Schema>, others: &[(String, RefOr<Schema>)], fields: &mut Vec<DataField>) {
    match schema {
        RefOr::Ref(reference) => {
            let name = schema_name(&reference.ref_location);
            if let Some((_, schema)) = others.iter().find(|(other, _)| other == name) {
                add_fields(schema, others, fields);
            }
        }
        RefOr::T(Schema::AllOf(all)) => all.items.iter().for_each(|item| add_fields(item, others, fields)),
        RefOr::T(Schema::Object(object)) => {
            for (name, property) in &object.properties {
                let json = serde_json::to_value(property).unwrap_or_default();
                let optional = if object.required.contains(name) { "" } else { "?" };
                let type_name = format!("{}{optional}", type_name(&json));
                let description = json["description"].as_str().unwrap_or_default().replace('\n', " ");
                fields.push(DataField { name: name.clone(), type_name, description });
            }
        }
        RefOr::T(_) => {}
    }
}

fn schema_name(reference: &str) -> &str {
    reference.rsplit('/').next().unwrap_or_default()
}

/// A short name of a schema's type, such as `string`, `[string]` or `Decision`.
fn type_name(schema: &Value) -> String {
    if let Some(reference) = schema["$ref"].as_str() {
        return schema_name(reference).to_owned();
    }
    for composite in ["oneOf", "allOf"] {
        if let Some(items) = schema[composite].as_array() {
            let names: Vec<String> = items.iter().map(type_name).filter(|name| name != "null").collect();
            return names.join(" or ");
        }
    }
    match &schema["type"] {
        Value::String(name) if name == "array" => format!("[{}]", type_name(&schema["items"])),
        Value::String(name) => name.clone(),
        Value::Array(names) => {
            let names: Vec<&str> = names.iter().filter_map(Value::as_str).filter(|name| *name != "null").collect();
            match names.as_slice() {
                ["array"] => format!("[{}]", type_name(&schema["items"])),
                names => names.join(" or "),
            }
        }
        _ => "any".to_owned(),
    }
}
