#include "samba/text/normalizer.h"

#include <unicode/bytestream.h>
#include <unicode/normalizer2.h>
#include <unicode/uchar.h>

#include <algorithm>
#include <limits>

#include "samba/core/error.h"
#include "samba/text/utf8.h"

namespace samba {

namespace {

template <class... Cases>
struct Overloaded : Cases... {
  using Cases::operator()...;
};
template <class... Cases>
Overloaded(Cases...) -> Overloaded<Cases...>;

const icu::Normalizer2& normalizer_of(NormalForm form) {
  UErrorCode status = U_ZERO_ERROR;
  const icu::Normalizer2* normalizer = nullptr;
  switch (form) {
    case NormalForm::nfc:
      normalizer = icu::Normalizer2::getNFCInstance(status);
      break;
    case NormalForm::nfd:
      normalizer = icu::Normalizer2::getNFDInstance(status);
      break;
    case NormalForm::nfkc:
      normalizer = icu::Normalizer2::getNFKCInstance(status);
      break;
    case NormalForm::nfkd:
      normalizer = icu::Normalizer2::getNFKDInstance(status);
      break;
  }
  if (U_FAILURE(status) || normalizer == nullptr) {
    throw Error(ErrorKind::internal, std::string("ICU has no normalizer: ") + u_errorName(status));
  }
  return *normalizer;
}

// Returns false when there is nothing to replace.
bool replace(const Normalizer::Replace& step, std::string_view text, Regex::Scratch& scratch, std::string& out) {
  std::size_t begin = 0;
  std::size_t end = 0;
  const auto find = [&](std::size_t from) {
    if (step.pattern) return step.pattern->find(text, from, scratch, begin, end);
    begin = text.find(step.text, from);
    end = begin + step.text.size();
    return begin != std::string_view::npos;
  };
  if (!find(0)) return false;
  std::size_t done = 0;
  do {
    out += text.substr(done, begin - done);
    out += step.content;
    done = end;
  } while (find(done));
  out += text.substr(done);
  return true;
}

std::string_view strip(const Normalizer::Strip& step, std::string_view text) {
  std::size_t length = 0;
  while (step.left && !text.empty() && is_white_space(first_character(text, length))) text.remove_prefix(length);
  while (step.right && !text.empty()) {
    std::size_t start = text.size() - 1;
    while ((static_cast<unsigned char>(text[start]) & 0xC0) == 0x80) --start;
    if (!is_white_space(first_character(text.substr(start), length))) break;
    text = text.substr(0, start);
  }
  return text;
}

}  // namespace

bool is_white_space(char32_t character) { return u_isUWhiteSpace(static_cast<UChar32>(character)) != 0; }

bool is_word_character(char32_t character) {
  const auto point = static_cast<UChar32>(character);
  const std::uint32_t category = U_GET_GC_MASK(point);
  return (category & (U_GC_M_MASK | U_GC_ND_MASK | U_GC_PC_MASK)) != 0 || u_isUAlphabetic(point) != 0 ||
         u_hasBinaryProperty(point, UCHAR_JOIN_CONTROL) != 0;
}

bool normalize_unicode(std::string_view text, NormalForm form, std::string& normalized) {
  if (std::all_of(text.begin(), text.end(), [](char c) { return static_cast<unsigned char>(c) < 0x80; })) return false;
  if (text.size() > static_cast<std::size_t>(std::numeric_limits<std::int32_t>::max())) {
    throw Error(ErrorKind::resource, "a text of more than 2 GiB cannot be normalized at once");
  }
  const icu::Normalizer2& normalizer = normalizer_of(form);
  const icu::StringPiece piece(text.data(), static_cast<std::int32_t>(text.size()));
  UErrorCode status = U_ZERO_ERROR;
  if (normalizer.isNormalizedUTF8(piece, status) != 0 && U_SUCCESS(status)) return false;
  normalized.clear();
  icu::StringByteSink<std::string> sink(&normalized, static_cast<std::int32_t>(text.size()));
  status = U_ZERO_ERROR;
  normalizer.normalizeUTF8(0, piece, sink, nullptr, status);
  if (status == U_MEMORY_ALLOCATION_ERROR) throw std::bad_alloc();
  if (U_FAILURE(status)) throw Error(ErrorKind::internal, std::string("ICU cannot normalize: ") + u_errorName(status));
  return true;
}

std::string_view Normalizer::apply(std::string_view text, bool continues, Regex::Scratch& scratch,
                                   std::string (&buffers)[2]) const {
  int next = 0;
  for (const Step& step : steps_) {
    std::string& buffer = buffers[next];
    buffer.clear();
    const bool changed =
        std::visit(Overloaded{[&](const Form& form) { return normalize_unicode(text, form.form, buffer); },
                              [&](const Prepend& prepend) {
                                if (continues || text.empty()) return false;
                                buffer.append(prepend.text).append(text);
                                return true;
                              },
                              [&](const Replace& replacing) { return replace(replacing, text, scratch, buffer); },
                              [&](const Strip& stripping) {
                                text = strip(stripping, text);
                                return false;
                              }},
                   step);
    if (!changed) continue;
    text = buffer;
    next = 1 - next;
  }
  return text;
}

}  // namespace samba
