//! ImageNet as people have it on disk: class folders, or validation images in one folder with a
//! file of labels; and names of the classes for humans.

use std::collections::HashMap;
use std::ffi::{OsStr, OsString};
use std::fmt;
use std::fs;
use std::io;
use std::os::fd::AsFd;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use super::image_folder::{
    EXTENSIONS, EmptyClasses, FolderError, ImageFolder, extensions, refuse_unreadable,
};
use crate::index::{self, Accept, Content, PathTable, ScanOptions, TableError, TableOrigin};
use crate::kept::TableCache;

/// Where the archive of ImageNet's object localisation challenge keeps its images.
const CHALLENGE: &str = "ILSVRC/Data/CLS-LOC";
/// Folders, relative to the root, in which the files that describe the dataset are looked for.
const BESIDE: [&str; 6] = ["", "data", "devkit/data", "ILSVRC2012_devkit_t12/data", "..", "val/.."];

/// Which part of ImageNet.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Split {
    /// `train/`
    Train,
    /// `val/`
    Val,
}

impl Split {
    fn folder(self) -> &'static str {
        match self {
            Self::Train => "train",
            Self::Val => "val",
        }
    }
}

/// Why ImageNet could not be opened.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ImageNetError {
    /// The class folders could not be opened.
    #[error(transparent)]
    Folder(#[from] FolderError),
    /// There is no folder of that part.
    #[error("no {} images below {root:?}: tried {tried:?}", split.folder())]
    NoSplit {
        /// The root that was given.
        root: PathBuf,
        /// The part asked for.
        split: Split,
        /// The folders looked for.
        tried: Vec<PathBuf>,
    },
    /// The images lie in one folder, and no file tells their labels.
    #[error(
        "{folder:?} has no class folders, so a file must tell the labels: tried {tried:?}. Name one \
         with labels(path)"
    )]
    NoLabels {
        /// The folder of images.
        folder: PathBuf,
        /// The files looked for.
        tried: Vec<PathBuf>,
    },
    /// The labels are numbers whose classes no file tells.
    #[error(
        "{labels:?} numbers the classes in the order of the challenge, which only map_clsloc.txt \
         tells (lines such as `n02119789 1 kit_fox`): tried {tried:?}. Name it with id_map(path)"
    )]
    NoIdMap {
        /// The file of labels.
        labels: PathBuf,
        /// The files looked for.
        tried: Vec<PathBuf>,
    },
    /// A file that describes the dataset is not as it should be.
    #[error("{path:?}, line {line}: {what}")]
    Line {
        /// The file.
        path: PathBuf,
        /// The line, counted from 1.
        line: usize,
        /// What is wrong.
        what: String,
    },
    /// A file that describes the dataset can't be read.
    #[error("{path:?}: {source}")]
    Io {
        /// The file.
        path: PathBuf,
        /// What the system said.
        source: io::Error,
    },
    /// Images for which the file of labels has none.
    #[error("{labels:?} has no label for {count} images, such as {example:?}")]
    Unlabelled {
        /// The file of labels.
        labels: PathBuf,
        /// How many.
        count: usize,
        /// One of them.
        example: PathBuf,
    },
    /// A label is a synset that is not among the classes.
    #[error(
        "{labels:?} has label {synset:?} for {example:?}, which is not among the {known} classes"
    )]
    UnknownClass {
        /// The file of labels.
        labels: PathBuf,
        /// The label.
        synset: OsString,
        /// The image.
        example: PathBuf,
        /// The number of classes.
        known: usize,
    },
}

impl From<TableError> for ImageNetError {
    fn from(error: TableError) -> Self {
        Self::Folder(error.into())
    }
}

/// ImageNet's training or validation images.
///
/// The root holds `train/` and `val/`, or `ILSVRC/Data/CLS-LOC/` with these. Classes are synsets
/// such as `n01440764`, numbered as in the training images. The validation images are in class
/// folders too, or in one folder with one of these files beside it:
/// - `LOC_val_solution.csv`: after a heading, lines such as `ILSVRC2012_val_00000001,n01751748 1 2
///   3 4`, the image's name without extension and its synset, the rest being of no concern here;
/// - `ILSVRC2012_validation_ground_truth.txt`: one number a line, the class of the image of that
///   line's number, in the order of the challenge. `map_clsloc.txt` tells which synset that is.
///
/// Names for humans come from `LOC_synset_mapping.txt` or `synset_words.txt` (`n01440764 tench,
/// Tinca tinca`) or `words.txt` (the same with a tab) where one is there.
#[derive(Clone, Debug)]
pub struct ImageNet {
    folder: ImageFolder,
    names: Arc<[Option<String>]>,
}

impl ImageNet {
    /// Opens that part of the dataset with the default options.
    ///
    /// # Errors
    /// See [`ImageNetError`].
    pub fn open(root: impl AsRef<Path>, split: Split) -> Result<Self, ImageNetError> {
        Self::builder(root, split).open()
    }

    /// Options, then [`open`](ImageNetBuilder::open).
    pub fn builder(root: impl AsRef<Path>, split: Split) -> ImageNetBuilder {
        ImageNetBuilder {
            root: root.as_ref().to_owned(),
            split,
            classes: None,
            labels: None,
            id_map: None,
            class_names: None,
            cache: TableCache::default(),
            rescan: false,
        }
    }

    /// The samples, with synsets as classes.
    pub fn folder(&self) -> &ImageFolder {
        &self.folder
    }

    /// The name of a class for humans, such as `tench, Tinca tinca`; `None` where no file tells it.
    pub fn class_name(&self, label: i64) -> Option<&str> {
        self.names.get(usize::try_from(label).ok()?)?.as_deref()
    }
}

/// How [`ImageNet`] is opened.
#[derive(Clone, Debug)]
#[must_use]
pub struct ImageNetBuilder {
    root: PathBuf,
    split: Split,
    classes: Option<Vec<OsString>>,
    labels: Option<PathBuf>,
    id_map: Option<PathBuf>,
    class_names: Option<PathBuf>,
    cache: TableCache,
    rescan: bool,
}

impl ImageNetBuilder {
    /// The synsets by label. By default the folders of the training images, where there are some,
    /// else those that `LOC_synset_mapping.txt` names, else those of the validation images; always
    /// sorted.
    pub fn classes<C: Into<OsString>>(mut self, list: impl IntoIterator<Item = C>) -> Self {
        self.classes = Some(list.into_iter().map(Into::into).collect());
        self
    }

    /// The file of labels for validation images in one folder. By default it is looked for.
    pub fn labels(mut self, path: impl Into<PathBuf>) -> Self {
        self.labels = Some(path.into());
        self
    }

    /// The file with the challenge's numbers of the synsets. By default it is looked for.
    pub fn id_map(mut self, path: impl Into<PathBuf>) -> Self {
        self.id_map = Some(path.into());
        self
    }

    /// The file with names of the classes for humans. By default it is looked for.
    pub fn class_names(mut self, path: impl Into<PathBuf>) -> Self {
        self.class_names = Some(path.into());
        self
    }

    /// Where the path table of class folders is kept. By default in the user's cache folder.
    /// Images in one folder are listed at every opening.
    pub fn cache(mut self, cache: TableCache) -> Self {
        self.cache = cache;
        self
    }

    /// Whether to read every directory again, whatever is kept. By default only changed ones are.
    pub fn rescan(mut self, rescan: bool) -> Self {
        self.rescan = rescan;
        self
    }

    /// Opens the dataset.
    ///
    /// # Errors
    /// See [`ImageNetError`].
    pub fn open(self) -> Result<ImageNet, ImageNetError> {
        let tried = self.candidates(self.split);
        let Some(images) = tried.iter().find(|folder| folder.is_dir()) else {
            return Err(ImageNetError::NoSplit { root: self.root, split: self.split, tried });
        };
        let own = class_folders(images)?;
        let classes = self.class_list()?;
        let folder = if self.split == Split::Val && own.is_empty() {
            self.flat(images, classes)?
        } else {
            let mut builder =
                ImageFolder::builder(images).cache(self.cache.clone()).rescan(self.rescan);
            if let Some(classes) = classes {
                builder = builder.classes(classes);
                if self.split == Split::Val {
                    builder = builder.empty_classes(EmptyClasses::Keep);
                }
            }
            builder.open()?
        };
        let names = self.names(&folder)?;
        Ok(ImageNet { folder, names })
    }

    fn candidates(&self, split: Split) -> Vec<PathBuf> {
        let folder = split.folder();
        vec![self.root.join(folder), self.root.join(CHALLENGE).join(folder)]
    }

    /// The given file, or the places to look for one of these names.
    fn look_for(&self, given: Option<&PathBuf>, names: &[&str]) -> Vec<PathBuf> {
        if let Some(path) = given {
            return vec![path.clone()];
        }
        let of = |name| BESIDE.iter().map(move |dir| self.root.join(dir).join(name));
        names.iter().flat_map(of).collect()
    }

    /// The synsets by label, where something other than the images of this part tells them.
    fn class_list(&self) -> Result<Option<Vec<OsString>>, ImageNetError> {
        if self.classes.is_some() || self.split == Split::Train {
            return Ok(self.classes.clone());
        }
        if let Some(train) = self.candidates(Split::Train).iter().find(|folder| folder.is_dir()) {
            let folders = class_folders(train)?;
            if !folders.is_empty() {
                return Ok(Some(folders));
            }
        }
        let mapping = self.look_for(None, &["LOC_synset_mapping.txt"]);
        let Some(mapping) = mapping.iter().find(|path| path.is_file()) else { return Ok(None) };
        let text = read(mapping)?;
        let synsets = lines(&text).map(|(_, line)| os(split_at_space(line).0));
        let mut synsets: Vec<_> = synsets.collect();
        synsets.sort();
        synsets.dedup();
        Ok(Some(synsets))
    }

    /// Validation images in one folder.
    fn flat(
        &self,
        images: &Path,
        classes: Option<Vec<OsString>>,
    ) -> Result<ImageFolder, ImageNetError> {
        let tried = self.look_for(
            self.labels.as_ref(),
            &["LOC_val_solution.csv", "ILSVRC2012_validation_ground_truth.txt"],
        );
        let Some(path) = tried.iter().find(|path| path.is_file()) else {
            return Err(ImageNetError::NoLabels { folder: images.to_owned(), tried });
        };
        let text = read(path)?;
        let labels = if lines(&text).next().is_some_and(|(_, line)| line.contains(&b',')) {
            Labels::ByName(solution(path, &text)?)
        } else {
            let map = self.read_id_map(path)?;
            Labels::ByNumber(ground_truth(path, &text, &map)?)
        };
        let classes = classes.unwrap_or_else(|| labels.synsets());
        let numbers: HashMap<&[u8], u32> =
            (0..).zip(&classes).map(|(number, name)| (name.as_bytes(), number)).collect();

        let scan_error = |source| FolderError::Scan { root: images.to_owned(), source };
        let root = std::path::absolute(images).map_err(scan_error)?;
        let root_fd = index::open_root(&root).map_err(scan_error)?;
        let scan = ScanOptions {
            accept: Accept::Extensions(extensions(&EXTENSIONS.map(OsString::from))?),
            hidden: false,
            follow_links: true,
            flat: true,
        };
        let dirs = index::scan(&root, root_fd.as_fd(), &scan, None).map_err(scan_error)?;
        let mut of_entries = Vec::new();
        let mut missing = Vec::new();
        for dir in &dirs {
            for middle in dir.names.each() {
                let name = [&dir.names.prefix, middle, &dir.names.suffix].concat();
                let Some(synset) = labels.of(stem(&name)) else {
                    missing.push(name);
                    continue;
                };
                let Some(number) = numbers.get(synset) else {
                    return Err(ImageNetError::UnknownClass {
                        labels: path.clone(),
                        synset: os(synset),
                        example: root.join(os(&name)),
                        known: classes.len(),
                    });
                };
                of_entries.push(*number);
            }
        }
        if let Some(first) = missing.first() {
            return Err(ImageNetError::Unlabelled {
                labels: path.clone(),
                count: missing.len(),
                example: root.join(os(first)),
            });
        }
        let bytes = index::encode_table(Content {
            root: &root,
            options: b"flat 1\0",
            classes: &classes.into_iter().map(OsString::into_vec).collect::<Vec<_>>(),
            dirs: dirs.into_iter().map(|dir| (0, dir)).collect(),
            order: Vec::new(),
            labels: of_entries,
        })?;
        let folder = ImageFolder::new(PathTable::in_memory(&bytes)?, TableOrigin::Scanned)?;
        refuse_unreadable(images, folder.report())?;
        Ok(folder)
    }

    /// The synset of each of the challenge's numbers.
    fn read_id_map(&self, labels: &Path) -> Result<HashMap<u32, Vec<u8>>, ImageNetError> {
        let tried = self.look_for(self.id_map.as_ref(), &["map_clsloc.txt"]);
        let Some(path) = tried.iter().find(|path| path.is_file()) else {
            return Err(ImageNetError::NoIdMap { labels: labels.to_owned(), tried });
        };
        let text = read(path)?;
        let mut map = HashMap::new();
        for (number, line) in lines(&text) {
            let mut words = line.split(|b| b.is_ascii_whitespace()).filter(|w| !w.is_empty());
            let pair = words.next().zip(words.next().and_then(parse));
            let Some((synset, id)) = pair else {
                return Err(bad_line(path, number, "expected a synset and its number"));
            };
            if map.insert(id, synset.to_vec()).is_some() {
                return Err(bad_line(path, number, format_args!("number {id} once more")));
            }
        }
        Ok(map)
    }

    fn names(&self, folder: &ImageFolder) -> Result<Arc<[Option<String>]>, ImageNetError> {
        let files = ["LOC_synset_mapping.txt", "synset_words.txt", "words.txt"];
        let tried = self.look_for(self.class_names.as_ref(), &files);
        let mut known = HashMap::new();
        let text;
        if let Some(path) = tried.iter().find(|p| self.class_names.is_some() || p.is_file()) {
            text = read(path)?;
            known.extend(lines(&text).map(|(_, line)| split_at_space(line)));
        }
        let name = |synset: &OsStr| {
            let name = known.get(synset.as_bytes())?;
            Some(String::from_utf8_lossy(name).into_owned())
        };
        Ok(folder.classes().map(name).collect())
    }
}

/// What a file of labels says.
enum Labels {
    /// By the image's name without extension.
    ByName(HashMap<Vec<u8>, Vec<u8>>),
    /// By the image's number, from 1 on.
    ByNumber(Vec<Vec<u8>>),
}

impl Labels {
    fn of(&self, stem: &[u8]) -> Option<&[u8]> {
        match self {
            Self::ByName(map) => map.get(stem).map(Vec::as_slice),
            Self::ByNumber(list) => {
                let digits = stem.iter().rev().take_while(|b| b.is_ascii_digit()).count();
                let number = parse(&stem[stem.len() - digits..])?;
                list.get((number as usize).checked_sub(1)?).map(Vec::as_slice)
            }
        }
    }

    fn synsets(&self) -> Vec<OsString> {
        let mut all: Vec<OsString> = match self {
            Self::ByName(map) => map.values().map(|synset| os(synset)).collect(),
            Self::ByNumber(list) => list.iter().map(|synset| os(synset)).collect(),
        };
        all.sort();
        all.dedup();
        all
    }
}

/// `LOC_val_solution.csv`
fn solution(path: &Path, text: &[u8]) -> Result<HashMap<Vec<u8>, Vec<u8>>, ImageNetError> {
    let mut labels = HashMap::new();
    for (number, line) in lines(text) {
        if number == 1 && line.starts_with(b"ImageId,") {
            continue;
        }
        let comma = line.iter().position(|&b| b == b',');
        let (image, rest) = comma.map_or((line, &line[..0]), |at| (&line[..at], &line[at + 1..]));
        let synset = split_at_space(rest.trim_ascii()).0;
        if image.is_empty() || synset.is_empty() {
            return Err(bad_line(path, number, "expected `image,synset ...`"));
        }
        if labels.insert(image.to_vec(), synset.to_vec()).is_some_and(|old| old != synset) {
            let image = image.escape_ascii();
            return Err(bad_line(path, number, format_args!("another label for {image}")));
        }
    }
    Ok(labels)
}

/// `ILSVRC2012_validation_ground_truth.txt`
fn ground_truth(
    path: &Path,
    text: &[u8],
    map: &HashMap<u32, Vec<u8>>,
) -> Result<Vec<Vec<u8>>, ImageNetError> {
    let label = |(number, line): (usize, &[u8])| {
        let id = parse(line).ok_or_else(|| bad_line(path, number, "expected a number"))?;
        let synset = map.get(&id);
        synset
            .cloned()
            .ok_or_else(|| bad_line(path, number, format_args!("no class has number {id}")))
    };
    lines(text).map(label).collect()
}

/// The class folders of a folder, sorted by bytes.
fn class_folders(folder: &Path) -> Result<Vec<OsString>, ImageNetError> {
    let io = |source| ImageNetError::Io { path: folder.to_owned(), source };
    let mut out = Vec::new();
    for entry in fs::read_dir(folder).map_err(io)? {
        let entry = entry.map_err(io)?;
        let name = entry.file_name();
        let kind = entry.file_type().map_err(io)?;
        let is_folder = kind.is_dir() || kind.is_symlink() && entry.path().is_dir();
        if is_folder && !name.as_bytes().starts_with(b".") {
            out.push(name);
        }
    }
    out.sort();
    Ok(out)
}

fn read(path: &Path) -> Result<Vec<u8>, ImageNetError> {
    fs::read(path).map_err(|source| ImageNetError::Io { path: path.to_owned(), source })
}

/// The lines that are not blank, with their numbers from 1 on.
fn lines(text: &[u8]) -> impl Iterator<Item = (usize, &[u8])> {
    (1..).zip(text.split(|&b| b == b'\n').map(<[u8]>::trim_ascii)).filter(|(_, l)| !l.is_empty())
}

/// What stands before and behind the first blank or tab.
fn split_at_space(line: &[u8]) -> (&[u8], &[u8]) {
    match line.iter().position(|&b| b == b' ' || b == b'\t') {
        Some(at) => (&line[..at], line[at..].trim_ascii()),
        None => (line, &[]),
    }
}

fn stem(name: &[u8]) -> &[u8] {
    name.iter().rposition(|&b| b == b'.').map_or(name, |dot| &name[..dot])
}

fn parse(digits: &[u8]) -> Option<u32> {
    std::str::from_utf8(digits).ok()?.parse().ok()
}

fn os(bytes: &[u8]) -> OsString {
    OsString::from_vec(bytes.to_vec())
}

fn bad_line(path: &Path, line: usize, what: impl fmt::Display) -> ImageNetError {
    ImageNetError::Line { path: path.to_owned(), line, what: what.to_string() }
}
