//! Tables in other processes.

use std::process::Command;

use loader_core::SharedTable;

use crate::made::*;

#[test]
fn a_handle_opens_the_same_file_until_it_changes() {
    let folder = Folder::new();
    let path = folder.path("t.arrow");
    write_file(&path, &[batch(0, 100, true)], false);
    let table = folder.builder(&path).columns(["f64", "text"]).open().unwrap();
    let json = serde_json::to_string(&table).unwrap();
    assert!(json.len() < 200, "{json}");
    let again: SharedTable = serde_json::from_str(&json).unwrap();
    assert_eq!(again.schema(), table.schema());
    assert_eq!(words(&[again.record_batch().unwrap()]), words(&[table.record_batch().unwrap()]));
    let compact = postcard::to_stdvec(&table).unwrap();
    let again: SharedTable = postcard::from_bytes(&compact).unwrap();
    assert_eq!(serde_json::to_string(&again).unwrap(), json);
    write_file(&path, &[batch(0, 101, true)], false);
    let error = serde_json::from_str::<SharedTable>(&json).unwrap_err().to_string();
    assert!(error.contains("changed since the handle of its table was made"), "{error}");
    std::fs::remove_file(&path).unwrap();
    let error = serde_json::from_str::<SharedTable>(&json).unwrap_err().to_string();
    assert!(error.contains("No such file"), "{error}");
}

#[test]
fn a_table_in_memory_has_no_handle_and_says_what_has() {
    let error = serde_json::to_string(&table(&numbers(3))).unwrap_err().to_string();
    assert!(error.contains("shareable"), "{error}");
}

/// What the test below runs in a process of its own.
#[test]
fn reads_the_table_that_it_is_told() {
    let Some(handle) = std::env::var_os("TABLE_TEST_HANDLE") else { return };
    let table: SharedTable = serde_json::from_str(handle.to_str().unwrap()).unwrap();
    assert_eq!(table.column::<f64>("a").unwrap()[8], 1.0);
    table.verify().unwrap();
}

#[test]
fn a_shareable_table_opens_in_a_process_that_is_no_child_of_the_loader() {
    let batch = numbers(1000);
    let table = SharedTable::shareable(&batch.schema(), [batch]).unwrap();
    let handle = serde_json::to_string(&table).unwrap();
    let run = || {
        Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "handles::reads_the_table_that_it_is_told"])
            .env("TABLE_TEST_HANDLE", &handle)
            .output()
            .unwrap()
    };
    let output = run();
    assert!(output.status.success(), "{output:?}");
    let here: SharedTable = serde_json::from_str(&handle).unwrap();
    drop(table);
    // What is open stays, but nobody opens it any more.
    assert_eq!(here.len(), 1000);
    assert!(!run().status.success());
    let error = serde_json::from_str::<SharedTable>(&handle).unwrap_err().to_string();
    assert!(error.contains("goes with the table that made it"), "{error}");
}
