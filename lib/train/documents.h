// The documents of text files, folders of such and JSON lines, plain or packed (.gz, .zst), one behind the other.
//
// Files whose name ends in .jsonl or .ndjson hold JSON lines: {"text": ...} is a document, {"prompt": ...,
// "completion":
// ...} one of which only the completion is learned. Any other file is text: one document, or one a line or a paragraph.
// A long document is given out in pieces that are cut behind a line break (docs/formats/shards.md), so that memory
// holds a piece, not the text.
#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "samba/core/files.h"
#include "samba/core/sha256.h"
#include "samba/formats/byte_source.h"

namespace samba {

enum class DocumentUnit { file, line, paragraph };

struct DocumentOptions {
  DocumentUnit unit = DocumentUnit::file;  // of text files
  std::string text_field = "text";
  std::string prompt_field = "prompt";
  std::string completion_field = "completion";
};

// Where a reading is: everything before it was given out.
struct DocumentPlace {
  std::uint64_t file = 0;  // number in the list
  std::uint64_t unit = 0;  // lines, paragraphs or pieces of that file
  bool operator==(const DocumentPlace&) const = default;
};

struct DocumentPiece {
  std::string text;
  bool counts = true;                   // as targets
  bool last = false;                    // of its document
  Sha256Digest digest{};                // of the document's text; of prompt, a zero byte and completion
  std::uint64_t bytes = 0;              // of the document's text
  std::optional<DocumentPlace> behind;  // where a reading can go on behind this piece
};

// What is told of a document before its first piece: whether it is wanted.
using DocumentFilter = std::function<bool(const Sha256Digest& digest)>;

class DocumentReader {
 public:
  static constexpr std::size_t kPieceBytes = std::size_t{1} << 20;

  // `files` in order. `wanted` is asked once a document (again when a reading goes on inside of one).
  DocumentReader(std::vector<Path> files, DocumentOptions options, DocumentPlace from, DocumentFilter wanted);
  ~DocumentReader();

  // The next piece; nullopt at the end. Error(value): a line that is no document, naming file and line.
  std::optional<DocumentPiece> next();

  // Of the files as they lie.
  std::uint64_t bytes_read() const { return bytes_before_ + (source_ ? source_->position() : 0); }

 private:
  void open_file();
  void close_file();
  bool read_more();  // into buffer_; false at the end of the file
  void next_line();
  void next_paragraph();
  void next_json(std::string_view line);
  void next_of_file();
  void begin_whole_file();
  void emit(std::string text, bool counts, bool last);
  void emit_document(std::string_view text);
  std::optional<std::string_view> line();  // without its end; valid until the next call

  std::vector<Path> files_;
  DocumentOptions options_;
  DocumentPlace place_;
  std::uint64_t skip_ = 0;  // units of the first file that were read before
  DocumentFilter wanted_;
  std::unique_ptr<ByteSource> source_;
  std::string buffer_;
  std::size_t at_ = 0;  // of buffer_
  bool file_ended_ = false;
  bool json_ = false;
  std::uint64_t bytes_before_ = 0;
  std::deque<DocumentPiece> ready_;
  Sha256Digest digest_{};
  std::uint64_t document_bytes_ = 0;
};

// The files that a preparation of `paths` reads, in order: a folder gives all regular files below it in bytewise order
// of their paths, symbolic links are skipped. Error(value) names the path.
std::vector<Path> document_files(const std::vector<std::string>& paths);

}  // namespace samba
