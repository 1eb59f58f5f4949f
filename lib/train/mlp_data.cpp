#include "samba/train/mlp_data.h"

#include <algorithm>

#include "samba/core/error.h"
#include "samba/core/numbers.h"
#include "samba/core/sha256.h"

namespace samba {

namespace {

constexpr std::size_t kShownFaults = 10;
constexpr std::size_t kShownField = 40;
constexpr std::size_t kFeatures = static_cast<std::size_t>(kMlpFeatures);

std::string_view trimmed(std::string_view text) {
  const std::size_t first = text.find_first_not_of(" \t\r");
  if (first == std::string_view::npos) return {};
  return text.substr(first, text.find_last_not_of(" \t\r") - first + 1);
}

std::vector<std::string_view> fields_of(std::string_view line) {
  std::vector<std::string_view> fields;
  while (true) {
    const std::size_t comma = line.find(',');
    fields.push_back(trimmed(line.substr(0, comma)));
    if (comma == std::string_view::npos) return fields;
    line.remove_prefix(comma + 1);
  }
}

std::string quoted(std::string_view field) {
  return "\"" + std::string(field.substr(0, kShownField)) + (field.size() > kShownField ? "...\"" : "\"");
}

bool is_header(std::span<const std::string_view> fields) {
  return std::none_of(fields.begin(), fields.end(), [](std::string_view field) {
    float unused = 0.0F;
    return field.empty() || read_number(field, unused) != NumberFault::syntax;
  });
}

class RowReader {
 public:
  explicit RowReader(ClassColumn column) : column_(column) {}

  void read_file(const std::string& path) {
    if (std::filesystem::is_directory(path)) refuse_value(path + " is a folder; a CSV file is needed");
    read_text(samba::read_file(path), path);
  }

  // `source` names the text in messages.
  void read_text(const std::string& content, const std::string& source) {
    hash_.update(content.data(), content.size());
    const Index before = rows_.rows();
    std::string_view rest = content;
    if (rest.starts_with("\xEF\xBB\xBF")) rest.remove_prefix(3);
    for (std::size_t number = 1; !rest.empty(); ++number) {
      const std::size_t end = std::min(rest.find('\n'), rest.size());
      const std::string_view line = trimmed(rest.substr(0, end));
      rest.remove_prefix(std::min(end + 1, rest.size()));
      if (line.empty()) continue;
      const std::vector<std::string_view> fields = fields_of(line);
      if (number == 1 && is_header(fields)) continue;
      read_row(fields, source + ":" + std::to_string(number));
    }
    if (rows_.rows() == before && faults_ == 0) refuse_value(source + " has no row of features");
    ++rows_.files;
  }

  MlpRows take() {
    if (faults_ > kShownFaults) {
      messages_ += "\n  and " + std::to_string(faults_ - kShownFaults) + " more";
    }
    if (faults_ > 0) refuse_value(std::to_string(faults_) + " bad row(s):" + messages_);
    rows_.sha256 = hash_.finish_hex();
    return std::move(rows_);
  }

 private:
  void fault(const std::string& where, const std::string& what) {
    if (++faults_ <= kShownFaults) messages_ += "\n  " + where + ": " + what;
  }

  void read_row(std::span<const std::string_view> fields, const std::string& where) {
    const bool labeled = fields.size() == kFeatures + 1;
    const bool first = rows_.features.empty() && faults_ == 0;
    if (!labeled && (fields.size() != kFeatures || column_ == ClassColumn::required)) {
      return fault(where, std::string("needs 8 features") +
                              (column_ == ClassColumn::required ? " and a class" : ", or 8 features and a class") +
                              ", got " + std::to_string(fields.size()) + " fields");
    }
    if (!first && labeled != labeled_) {
      return fault(where,
                   labeled ? "has a class, the rows before it have none" : "has no class, the rows before it have one");
    }
    labeled_ = labeled;
    float values[kFeatures];
    for (std::size_t i = 0; i < kFeatures; ++i) {
      if (read_number(fields[i], values[i]) != NumberFault::none) {
        return fault(where, "feature " + std::to_string(i + 1) + " must be a finite number, got " + quoted(fields[i]));
      }
    }
    if (labeled) {
      const std::string_view text = fields[kFeatures];
      if (text != "0" && text != "1" && text != "2") {
        return fault(where, "the class must be 0, 1 or 2, got " + quoted(text));
      }
      rows_.classes.push_back(text[0] - '0');
    }
    rows_.features.insert(rows_.features.end(), values, values + kFeatures);
  }

  ClassColumn column_;
  MlpRows rows_;
  Sha256 hash_;
  bool labeled_ = false;
  std::size_t faults_ = 0;
  std::string messages_;
};

}  // namespace

Array MlpRows::features_of(std::span<const std::uint64_t> rows) const {
  Array array = Array::zeros({static_cast<Index>(rows.size()), kMlpFeatures});
  auto to = array.floats().begin();
  for (const std::uint64_t row : rows) {
    to = std::copy_n(features.begin() + static_cast<std::ptrdiff_t>(row * kFeatures), kFeatures, to);
  }
  return array;
}

Array MlpRows::classes_of(std::span<const std::uint64_t> rows) const {
  Array array(DType::int32, {static_cast<Index>(rows.size())});
  for (std::size_t i = 0; i < rows.size(); ++i) array.values<std::int32_t>()[i] = classes[rows[i]];
  return array;
}

MlpRows read_mlp_rows(const std::vector<std::string>& paths, ClassColumn column) {
  RowReader reader(column);
  for (const std::string& path : paths) reader.read_file(path);
  return reader.take();
}

MlpRows parse_mlp_rows(const std::string& text, const std::string& source, ClassColumn column) {
  RowReader reader(column);
  reader.read_text(text, source);
  return reader.take();
}

}  // namespace samba
