//! Sources that are converted once, and kept.

use std::fs;
use std::io::Write;
use std::os::unix::fs::MetadataExt;
use std::path::PathBuf;
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use loader_core::arrow::schema::DataType;
use loader_core::{SharedTable, SharedTableError, TableCache};

use crate::made::*;

#[test]
fn csv_is_read_by_its_own_types() {
    let folder = Folder::new();
    let text = "\u{feff}i,f,b,d,t,s,e\n1,0.5,true,2024-01-31,2024-01-31T12:00:00,\"a, \"\"b\"\"\",\n,,,,,,\n-3,1e3,false,1970-01-02,2024-01-31T12:00:01,é,\n";
    let path = folder.write("t.csv", text);
    let table = folder.builder(&path).open().unwrap();
    let types: Vec<_> = table.views().map(|column| column.data_type().to_string()).collect();
    assert_eq!(types[..4], ["Int64", "Float64", "Boolean", "Date32"]);
    assert!(types[4].starts_with("Timestamp") && types[5..] == ["Utf8", "Utf8"], "{types:?}");
    assert_eq!(table.view("i").unwrap().values::<i64>().unwrap()[2], -3);
    assert_eq!(table.view("f").unwrap().values::<f64>().unwrap()[2], 1000.0);
    assert_eq!(table.view("d").unwrap().values::<i32>().unwrap()[2], 1);
    let strings = table.view("s").unwrap().strings().unwrap();
    assert_eq!(strings.get(0).unwrap(), Some("a, \"b\""));
    assert!(table.views().all(|column| !column.validity().unwrap().is_valid(1)));
    assert_eq!(table.view("e").unwrap().null_count(), 3);
}

#[test]
fn csv_takes_settings() {
    let folder = Folder::new();
    let path = folder.write("t.tsv", "1\tNA\tx\n2\t0.5\t-\n");
    let table = folder
        .builder(&path)
        .has_header(false)
        .null_values(["NA", "-"])
        .column_type("column_1", DataType::Float32)
        .open()
        .unwrap();
    assert_eq!(table.column::<f32>("column_1").unwrap(), [1.0, 2.0]);
    assert_eq!(table.view("column_2").unwrap().values::<f64>().unwrap()[1], 0.5);
    assert_eq!(table.view("column_3").unwrap().null_count(), 1);
    let other = folder.builder(&path).has_header(false).delimiter(b';').open().unwrap();
    assert_eq!(other.schema().fields().len(), 1);
    let error = folder.builder(&path).column_type("z", DataType::Int8).open().unwrap_err();
    assert!(matches!(error, SharedTableError::NoColumn { .. }), "{error}");
}

#[test]
fn a_value_that_does_not_fit_is_named_by_line_and_column() {
    let folder = Folder::new();
    let mut text = String::from("id,price\n");
    (0..150_000).for_each(|row| text.push_str(&format!("{row},{row}\n")));
    text.push_str("150000,4.5\n");
    let path = folder.write("t.csv", &text);
    let error = folder.builder(&path).open().unwrap_err();
    let SharedTableError::Value { line, column, value, .. } = &error else { panic!("{error}") };
    assert_eq!((*line, &**column, &**value), (150_002, "price", "4.5"));
    for knob in ["infer_rows", "column_type", "null_values", "Int64"] {
        assert!(error.to_string().contains(knob), "{error}");
    }
    assert_eq!(folder.kept().iter().filter(|name| !name.ends_with(".lock")).count(), 0);
    let error = folder.builder(&path).columns(["price"]).open().unwrap_err();
    assert!(
        matches!(&error, SharedTableError::Value { column, .. } if column == "price"),
        "{error}"
    );
    let table = folder.builder(&path).infer_rows(usize::MAX).open().unwrap();
    assert_eq!(table.column::<f64>("price").unwrap()[150_000], 4.5);
    let short = folder.write("short.csv", "a,b\n1,2\n3\n");
    let error = folder.builder(&short).open().unwrap_err().to_string();
    assert!(error.contains("line 3"), "{error}");
}

#[test]
fn a_source_is_converted_once_until_it_changes() {
    let folder = Folder::new();
    let path = folder.write("t.csv", "a\n1\n2\n");
    let conversions = Arc::new(AtomicU64::new(0));
    let open = || {
        let counted = Arc::clone(&conversions);
        let table = folder.builder(&path).progress(move |progress| {
            assert!(progress.bytes <= progress.of && progress.rows > 0);
            counted.fetch_add(1, Ordering::Relaxed);
        });
        let table = table.open().unwrap();
        (table, conversions.load(Ordering::Relaxed))
    };
    let (first, count) = open();
    assert_eq!((count, first.column::<i64>("a").unwrap()), (1, &[1, 2][..]));
    assert_eq!(open().1, 1);
    fs::OpenOptions::new().append(true).open(&path).unwrap().write_all(b"3\n").unwrap();
    let (second, count) = open();
    assert_eq!((count, second.column::<i64>("a").unwrap()), (2, &[1, 2, 3][..]));
    // Who has the old one keeps it.
    assert_eq!(first.column::<i64>("a").unwrap(), [1, 2]);
    // The same size, another time.
    fs::write(&path, "a\n4\n5\n6\n").unwrap();
    let file = fs::File::options().write(true).open(&path).unwrap();
    file.set_modified(std::time::SystemTime::UNIX_EPOCH).unwrap();
    let (third, count) = open();
    assert_eq!((count, third.column::<i64>("a").unwrap()), (3, &[4, 5, 6][..]));
    assert_eq!(folder.builder(&path).rebuild(true).open().unwrap().len(), 3);
    // A kept table that was damaged is made again.
    let kept = third.path().unwrap().to_owned();
    fs::write(&kept, &fs::read(&kept).unwrap()[..200]).unwrap();
    assert_eq!(open().1, 4);
    let mode = fs::metadata(&kept).unwrap().mode() & 0o777;
    assert_eq!(mode, 0o600);
    assert_eq!(folder.kept().len(), 2, "{:?}", folder.kept());
}

#[test]
fn threads_that_open_at_once_convert_once() {
    let folder = Folder::new();
    let path = folder.path("t.arrow");
    write_file(&path, &[batch(0, 500, true), batch(500, 500, true)], true);
    let inodes: Vec<_> = std::thread::scope(|scope| {
        let open = || {
            let table = folder.builder(&path).open().unwrap();
            table.verify().unwrap();
            fs::metadata(table.path().unwrap()).unwrap().ino()
        };
        let threads: Vec<_> = (0..8).map(|_| scope.spawn(open)).collect();
        threads.into_iter().map(|thread| thread.join().unwrap()).collect()
    });
    assert!(inodes.iter().all(|&inode| inode == inodes[0]), "{inodes:?}");
}

#[test]
fn somebody_elses_file_is_not_overwritten() {
    let folder = Folder::new();
    let path = folder.write("t.csv", "a\n1\n");
    let own = folder.path("own.arrow");
    write_file(&own, &[numbers(5)], false);
    for (at, content) in
        [(own.clone(), fs::read(&own).unwrap()), (folder.path("photo"), b"jpeg".to_vec())]
    {
        fs::write(&at, &content).unwrap();
        for rebuild in [false, true] {
            let builder = SharedTable::builder(&path).cache(TableCache::File(at.clone()));
            let error = builder.rebuild(rebuild).open().unwrap_err().to_string();
            assert!(error.contains("not overwritten"), "{error}");
            assert_eq!(fs::read(&at).unwrap(), content);
        }
    }
    let free = folder.path("free.arrow");
    for _ in 0..2 {
        let table = SharedTable::builder(&path).cache(TableCache::File(free.clone())).open();
        assert_eq!(table.unwrap().path(), Some(&*free));
    }
}

#[test]
fn a_table_may_live_in_memory_alone() {
    let folder = Folder::new();
    let path = folder.write("t.csv", "a\n1\n");
    let table = SharedTable::builder(&path).cache(TableCache::Off).open().unwrap();
    assert_eq!((table.path(), table.len()), (None, 1));
    // Not even root can make folders there.
    let nowhere = TableCache::Folder("/proc/loader".into());
    let error = SharedTable::builder(&path).cache(nowhere).open().unwrap_err().to_string();
    assert!(error.contains("TableCache::Off"), "{error}");
}

/// What the test below runs in a process of its own, under a limit on files' sizes.
#[test]
fn converts_where_it_is_told() {
    let Some(source) = std::env::var_os("TABLE_TEST_SOURCE") else { return };
    let folder = PathBuf::from(&source).parent().unwrap().join("cache");
    let converted = SharedTable::builder(&source).cache(TableCache::Folder(folder)).open();
    let error = converted.unwrap_err();
    assert!(matches!(error, SharedTableError::Io { .. }), "{error}");
}

#[test]
fn a_full_disk_or_a_kill_leaves_the_old_table_and_nothing_else() {
    let folder = Folder::new();
    let path = folder.write("t.csv", "a\n1\n");
    let old = folder.builder(&path).open().unwrap();
    let names = folder.kept();
    let mut text = String::from("a\n");
    (0..200_000).for_each(|row| text.push_str(&format!("{row}\n")));
    fs::write(&path, text).unwrap();
    // A write beyond the limit fails where the signal for it is ignored, and kills otherwise.
    for (trap, fails) in [("trap '' XFSZ;", false), ("", true)] {
        let script = format!(
            "ulimit -f 512; {trap} exec \"$0\" --exact converting::converts_where_it_is_told"
        );
        let status = Command::new("bash")
            .args(["-c", &script])
            .arg(std::env::current_exe().unwrap())
            .env("TABLE_TEST_SOURCE", &path)
            .output()
            .unwrap();
        assert_eq!(!status.status.success(), fails, "{status:?}");
        assert_eq!(old.column::<i64>("a").unwrap(), [1]);
        let now: Vec<_> = folder.kept();
        let aside = now.iter().filter(|name| name.ends_with(".aside")).count();
        // What a kill leaves is swept by the next conversion.
        assert!(aside <= usize::from(fails) && now.len() - aside == names.len(), "{now:?}");
    }
    assert_eq!(folder.builder(&path).open().unwrap().len(), 200_000);
    assert_eq!(folder.kept(), names);
}
