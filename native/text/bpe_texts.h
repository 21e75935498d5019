// A vocabulary's side towards Python: arrays of strings as a GGUF file has them, texts, token ids. bpe.h merges words.
#pragma once
#include <nanobind/nanobind.h>

#include <algorithm>
#include <cmath>
#include <numeric>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "pass/array.h"
#include "text/added_tokens.h"
#include "text/bpe.h"

namespace inflight {

// Strings in a file: each has its length in 8 bytes before it. ends: where each of them ends.
struct FileStrings {
  FileStrings(nb::handle data_, std::uint64_t begin_, nb::handle ends_)
      : data(data_, "data", Kind::u8, {any}), ends(ends_, "ends", Kind::u64, {any}), begin(begin_) {
    std::uint64_t at = begin;
    const auto* end = ends.data<const std::uint64_t>();
    for (std::size_t i = 0; i < size(); at = end[i++])
      if (end[i] > static_cast<std::uint64_t>(data.size(0)) || end[i] < at || end[i] - at < 8)
        refuse("string " + std::to_string(i) + " lies outside the file");
  }

  std::size_t size() const { return static_cast<std::size_t>(ends.size(0)); }
  std::string_view operator[](std::size_t index) const {
    const auto* end = ends.data<const std::uint64_t>();
    const std::uint64_t at = (index ? end[index - 1] : begin) + 8;
    const std::string_view text(data.data<const char>() + at, end[index] - at);
    if (!is_utf8(text)) refuse("string " + std::to_string(index) + " is no UTF-8");
    return text;
  }

  Array data, ends;
  std::uint64_t begin;
};

// Where each of so many strings of a file ends, as bytes of uint64; None where one would pass the file's end.
inline nb::object string_ends(nb::handle data, std::uint64_t begin, std::uint64_t count) {
  const Array bytes(data, "data", Kind::u8, {any});
  const auto size = static_cast<std::uint64_t>(bytes.size(0));
  if (begin > size || count > (size - begin) / 8) return nb::none();
  std::vector<std::uint64_t> ends(count);
  std::uint64_t at = begin;
  for (std::uint64_t& end : ends) {
    std::uint64_t length;
    if (size - at < 8) return nb::none();
    std::memcpy(&length, bytes.data<const char>() + at, 8);
    at += 8;
    if (length > size - at) return nb::none();
    end = at += length;
  }
  return nb::bytes(ends.data(), ends.size() * sizeof(std::uint64_t));
}

inline std::string_view utf8(nb::handle text) {
  if (!PyUnicode_Check(text.ptr())) refuse("a text is expected");
  Py_ssize_t size = 0;
  const char* bytes = PyUnicode_AsUTF8AndSize(text.ptr(), &size);
  if (!bytes) throw nb::python_error();
  return {bytes, static_cast<std::size_t>(size)};
}

inline nb::object text_of(std::string_view text) {
  return nb::steal(PyUnicode_DecodeUTF8(text.data(), static_cast<Py_ssize_t>(text.size()), nullptr));
}

inline AddedTokens make_added(nb::list texts, nb::list ids) {
  AddedTokens made;
  if (texts.size() != ids.size()) refuse("as many ids are expected as texts");
  for (std::size_t i = 0; i < texts.size(); ++i) made.add(utf8(texts[i]), nb::cast<std::int32_t>(ids[i]));
  return made;
}

// Texts (str) and ids (int) in order.
inline nb::list split_added(const AddedTokens& added, nb::handle text) {
  const std::string_view whole = utf8(text);
  nb::list found;
  added.split(
      whole, [&](std::size_t begin, std::size_t end) { found.append(text_of(whole.substr(begin, end - begin))); },
      [&](std::int32_t id, std::size_t, std::size_t) { found.append(nb::int_(id)); });
  return found;
}

// A model's vocabulary. Spaces are ▁ in one whose texts are merged whole.
class Vocabulary {
 public:
  // kinds: of each token, by the numbers of the format, or none. spaces: tokens of several spaces are spelled ▁▁.
  Vocabulary(nb::handle data, std::uint64_t begin, nb::handle ends, nb::handle kinds, bool spaces)
      : bpe_(read(FileStrings(data, begin, ends), kinds, spaces)) {}

  void add_pairs(nb::handle data, std::uint64_t begin, nb::handle ends) {
    const FileStrings pairs(data, begin, ends);
    bpe_.reserve_pairs(pairs.size());
    for (std::size_t i = 0; i < pairs.size(); ++i) {
      const std::string_view one = pairs[i];
      const std::size_t at = one.empty() ? one.npos : one.find(' ', character_bytes(one[0]));
      if (at == one.npos || !bpe_.add_pair(one.substr(0, at), one.substr(at + 1)))
        refuse("merge " + std::to_string(i) + " is not of two tokens that make a third");
    }
  }

  // scores: of each token, or none, where the first token is the best.
  void merge_by_scores(nb::handle scores) {
    std::vector<std::uint32_t> order(bpe_.tokens().numbers());
    std::iota(order.begin(), order.end(), 0u);
    if (!scores.is_none()) {
      const Array array(scores, "scores", Kind::f32, {static_cast<std::int64_t>(order.size())});
      const auto* score = array.data<const float>();
      std::vector<std::uint32_t> best(order);
      if (std::any_of(score, score + order.size(), [](float one) { return std::isnan(one); })) refuse("a score is NaN");
      std::stable_sort(best.begin(), best.end(), [&](auto a, auto b) { return score[a] > score[b]; });
      for (std::size_t i = 0, n = 0; i < best.size(); ++i) {
        n += i && score[best[i]] != score[best[i - 1]];  // equal scores have one place
        order[best[i]] = static_cast<std::uint32_t>(n);
      }
    }
    if (!bpe_.merge_by_order(std::move(order))) refuse("the vocabulary is too large");
  }

  void set_unknown(std::int64_t id) {
    bpe_.set_byte_tokens();
    if (!bpe_.falls_back && id >= 0) {
      if (!bpe_.tokens().has(id)) refuse("the unknown token has no text");
      bpe_.unknown = static_cast<std::int32_t>(id);
    }
  }
  void keep_words() { bpe_.keeps_words = true; }

  std::size_t size() const { return bpe_.tokens().size(); }
  std::int64_t longest() const { return longest_; }
  nb::object find(nb::handle text) const {
    const std::int32_t id = bpe_.tokens().find(utf8(text));
    return id == StringTable::none ? nb::none() : nb::object(nb::int_(id));
  }
  nb::object token(std::int64_t id) const {
    return bpe_.tokens().has(id) ? text_of(bpe_.tokens().text(static_cast<std::int32_t>(id))) : nb::none();
  }
  // (text, id) of control tokens, or of those that were defined by hand.
  nb::list special() const { return named(special_); }
  nb::list defined() const { return named(defined_); }

  // The end of a tokenizer.json: its vocabulary and merges, from their key on.
  nb::object as_json() const {
    std::string out;
    {
      const nb::gil_scoped_release released;
      const StringTable& tokens = bpe_.tokens();
      out = "\"vocab\":{";
      for (std::size_t id = 0; id < tokens.numbers(); ++id) {
        if (!tokens.has(static_cast<std::int64_t>(id))) continue;
        if (out.back() != '{') out.push_back(',');
        write_json(tokens.text(static_cast<std::int32_t>(id)), out);
        out.append(":").append(std::to_string(id));
      }
      out.append("},\"merges\":[");
      for (const auto& [left, right] : bpe_.pairs()) {
        out.append(out.back() == '[' ? "[" : ",[");
        write_json(tokens.text(left), out);
        out.push_back(',');
        write_json(tokens.text(right), out);
        out.push_back(']');
      }
      out.append("]}}");
    }
    return text_of(out);
  }

  // Ids of words: strings, or tuples that begin with one.
  nb::list encode_words(nb::list words) const {
    BPE::Scratch scratch;
    std::vector<WordToken> tokens;
    for (const nb::handle one : words)
      bpe_.encode(utf8(PyTuple_Check(one.ptr()) ? nb::handle(PyTuple_GetItem(one.ptr(), 0)) : one), scratch, tokens);
    return ids_of(tokens);
  }

  // Ids of a text that is merged whole between the added tokens. prefixed: with a space before each part.
  nb::list encode_text(nb::handle text, const AddedTokens& added, bool prefixed) const {
    const std::string_view whole = utf8(text);
    std::vector<WordToken> tokens;
    const auto encode = [&] {
      BPE::Scratch scratch;
      std::string part;
      added.split(
          whole,
          [&](std::size_t begin, std::size_t end) {
            spell(whole.substr(begin, end - begin), prefixed, part);
            bpe_.encode(part, scratch, tokens);
          },
          [&](std::int32_t id, std::size_t begin, std::size_t end) {
            tokens.push_back({id, static_cast<std::uint32_t>(end - begin)});
          });
    };
    if (whole.size() < long_text) {
      encode();
    } else {
      const nb::gil_scoped_release released;
      encode();
    }
    return ids_of(tokens);
  }

  // The same without a space before each part, with the characters of the text that each token stands for: (ids,
  // begins, ends). A character of several tokens belongs to each of them.
  nb::tuple encode_places(nb::handle text, const AddedTokens& added) const {
    const std::string_view whole = utf8(text);
    std::vector<WordToken> tokens;
    std::vector<std::uint32_t> begins, ends;
    {
      const nb::gil_scoped_release released;
      BPE::Scratch scratch;
      std::string part;
      std::vector<std::uint32_t> character;  // of each byte of a part
      std::uint32_t next = 0;
      added.split(
          whole,
          [&](std::size_t begin, std::size_t end) {
            spell(whole.substr(begin, end - begin), false, part);
            character.clear();
            for (const char byte : part) {
              next += (static_cast<std::uint8_t>(byte) & 0xC0) != 0x80;
              character.push_back(next - 1);
            }
            const std::size_t first = tokens.size();
            bpe_.encode(part, scratch, tokens);
            for (std::size_t i = first, at = 0; i < tokens.size(); at += tokens[i++].bytes) {
              begins.push_back(character[at]);
              ends.push_back(character[at + tokens[i].bytes - 1] + 1);
            }
          },
          [&](std::int32_t id, std::size_t begin, std::size_t end) {
            tokens.push_back({id, static_cast<std::uint32_t>(end - begin)});
            begins.push_back(next);
            ends.push_back(next += static_cast<std::uint32_t>(characters(whole.substr(begin, end - begin))));
          });
    }
    return nb::make_tuple(ids_of(tokens), numbers(begins), numbers(ends));
  }

 private:
  static constexpr std::size_t long_text = 1 << 14;  // bytes from which other threads run meanwhile

  // As a part of a text is merged: its spaces are ▁.
  static void spell(std::string_view text, bool prefixed, std::string& out) {
    static constexpr std::string_view space = "\xE2\x96\x81";
    out.clear();
    if (prefixed) out.append(space);
    for (const char byte : text)
      if (byte == ' ')
        out.append(space);
      else
        out.push_back(byte);
  }

  nb::list named(const std::vector<std::string>& texts) const {
    nb::list found;
    for (const std::string& text : texts) {
      const std::int32_t id = bpe_.tokens().find(text);
      if (id != StringTable::none && !text.empty()) found.append(nb::make_tuple(text_of(text), id));
    }
    return found;
  }

  // As the `tokenizers` library writes it: escaped is only what must be.
  static void write_json(std::string_view text, std::string& out) {
    static constexpr std::string_view named = "\b\f\n\r\t\"\\", letters = "bfnrt\"\\", digits = "0123456789abcdef";
    out.push_back('"');
    for (const char byte : text) {
      const std::size_t at = named.find(byte);
      if (at != named.npos)
        out.append({'\\', letters[at]});
      else if (static_cast<std::uint8_t>(byte) < 0x20)
        out.append("\\u00").append({digits[byte >> 4], digits[byte & 15]});
      else
        out.push_back(byte);
    }
    out.push_back('"');
  }

  static bool is_spaces(std::string_view text) {
    return text.size() > 1 && text.find_first_not_of(' ') == text.npos;
  }

  StringTable read(const FileStrings& strings, nb::handle kinds, bool spaces) {
    enum { unknown = 2, control = 3, defined = 4, unused = 5 };
    std::optional<Array> array;
    if (!kinds.is_none())
      array.emplace(kinds, "kinds", Kind::i32, std::initializer_list<std::int64_t>{strings.ends.size(0)});
    const std::int32_t* kind = array ? array->data<const std::int32_t>() : nullptr;
    StringTable tokens;
    const std::size_t count = strings.size();
    tokens.reserve(count, count ? strings.ends.data<const std::uint64_t>()[count - 1] - strings.begin : 0);
    std::string respelled;
    for (std::size_t i = 0; i < count; ++i) {
      const std::string_view text = strings[i];
      if (kind && (kind[i] == unknown || kind[i] == control)) special_.emplace_back(text);
      if (kind && kind[i] == defined) defined_.emplace_back(text);
      if (kind && kind[i] == unused && text.substr(0, 4) == "[PAD") {
        tokens.skip();
      } else if (spaces && is_spaces(text)) {
        spell(text, false, respelled);
        tokens.add(respelled);
        longest_ = std::max(longest_, characters(respelled));
      } else {
        tokens.add(text);
        longest_ = std::max(longest_, characters(text));
      }
    }
    return tokens;
  }

  static nb::list ids_of(const std::vector<WordToken>& tokens) {
    nb::list ids = nb::steal<nb::list>(PyList_New(static_cast<Py_ssize_t>(tokens.size())));
    for (std::size_t i = 0; i < tokens.size(); ++i)
      PyList_SET_ITEM(ids.ptr(), static_cast<Py_ssize_t>(i), PyLong_FromLong(tokens[i].id));
    return ids;
  }

  static nb::list numbers(const std::vector<std::uint32_t>& values) {
    nb::list found = nb::steal<nb::list>(PyList_New(static_cast<Py_ssize_t>(values.size())));
    for (std::size_t i = 0; i < values.size(); ++i)
      PyList_SET_ITEM(found.ptr(), static_cast<Py_ssize_t>(i), PyLong_FromUnsignedLong(values[i]));
    return found;
  }

  // Declared before the vocabulary, whose reading fills them.
  std::vector<std::string> special_, defined_;
  std::int64_t longest_ = 0;  // characters of a token
  BPE bpe_;
};

}  // namespace inflight
