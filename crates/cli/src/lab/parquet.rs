//! A table as a Parquet file, for pandas and DuckDB: one column per name, one row per run.

use parquet::basic::{ConvertedType, Repetition, Type as Physical};
use parquet::data_type::{ByteArray, ByteArrayType, DoubleType};
use parquet::errors::ParquetError;
use parquet::file::properties::WriterProperties;
use parquet::file::writer::SerializedFileWriter;
use parquet::schema::types::Type;
use std::io::Write;
use std::sync::Arc;

/// One column; what is missing is null.
pub(super) enum Column {
    Numbers(Vec<Option<f64>>),
    Texts(Vec<Option<String>>),
}

impl Column {
    fn schema(&self, name: &str) -> Result<Arc<Type>, ParquetError> {
        let (physical, converted) = match self {
            Self::Numbers(_) => (Physical::DOUBLE, ConvertedType::NONE),
            Self::Texts(_) => (Physical::BYTE_ARRAY, ConvertedType::UTF8),
        };
        let builder = Type::primitive_type_builder(name, physical)
            .with_repetition(Repetition::OPTIONAL)
            .with_converted_type(converted);
        builder.build().map(Arc::new)
    }
}

/// The values that are there, and for each row whether there is one.
fn levels<T, U>(values: &[Option<T>], own: impl Fn(&T) -> U) -> (Vec<U>, Vec<i16>) {
    let there = values.iter().flatten().map(own).collect();
    (there, values.iter().map(|value| i16::from(value.is_some())).collect())
}

/// Writes the whole table.
pub(super) fn write(
    out: impl Write + Send,
    columns: &[(String, Column)],
) -> Result<(), ParquetError> {
    let fields = columns.iter().map(|(name, column)| column.schema(name));
    let fields = fields.collect::<Result<Vec<_>, _>>()?;
    let schema = Arc::new(Type::group_type_builder("run").with_fields(fields).build()?);
    let properties = Arc::new(WriterProperties::builder().build());
    let mut file = SerializedFileWriter::new(out, schema, properties)?;
    let mut group = file.next_row_group()?;
    for (_, column) in columns {
        let Some(mut writer) = group.next_column()? else { break };
        match column {
            Column::Numbers(numbers) => {
                let (values, levels) = levels(numbers, |number| *number);
                writer.typed::<DoubleType>().write_batch(&values, Some(&levels), None)?;
            }
            Column::Texts(texts) => {
                let (values, levels) = levels(texts, |text| ByteArray::from(text.as_str()));
                writer.typed::<ByteArrayType>().write_batch(&values, Some(&levels), None)?;
            }
        }
        writer.close()?;
    }
    group.close()?;
    file.close()?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use parquet::file::reader::{FileReader, SerializedFileReader};
    use parquet::record::Field;

    #[test]
    fn what_is_written_is_read_again() {
        let columns = [
            ("rate".to_owned(), Column::Texts(vec![Some("1mbit".into()), None])),
            ("app.x.goodput".to_owned(), Column::Numbers(vec![None, Some(2.5)])),
        ];
        let mut bytes = Vec::new();
        write(&mut bytes, &columns).expect("a file in memory");
        let reader = SerializedFileReader::new(bytes::Bytes::from(bytes)).expect("a sound file");
        let rows: Vec<Vec<Field>> = reader
            .get_row_iter(None)
            .expect("rows")
            .map(|row| row.expect("a row").get_column_iter().map(|(_, f)| f.clone()).collect())
            .collect();
        assert_eq!(rows[0], [Field::Str("1mbit".into()), Field::Null]);
        assert_eq!(rows[1], [Field::Null, Field::Double(2.5)]);
    }
}
