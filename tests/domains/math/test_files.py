"""Problems of the common sets of competition mathematics, read from their lines."""

import json

import pytest

from sepo_jax.domains.math.files import read_problems

DAPO = (
    "Solve the following math problem step by step. The last line of your response should be of "
    "the form Answer: $Answer (without quotes) where $Answer is the answer to the problem.\n\n"
    "What is $2 + 2$?\n\nGive it as a number.\n\n"
    'Remember to put your answer on its own line after "Answer:".'
)
QUESTION = "What is $2 + 2$?\n\nGive it as a number."
# Set -> (line, question, answer, kind, difficulty, id).
SETS = {
    "DAPO-Math-17k": (
        {
            "data_source": "math_dapo",
            "prompt": [{"content": DAPO, "role": "user"}],
            "ability": "MATH",
            "reward_model": {"ground_truth": "4", "style": "rule-lighteval/MATH_v2"},
            "extra_info": {"index": "9a9b6eb4"},
        },
        (QUESTION, "4", "math_dapo", 0, "9a9b6eb4"),
    ),
    "DAPO-Math-17k-Processed": (
        {"prompt": QUESTION, "solution": "4", "data_source": "math_dapo"},
        (QUESTION, "4", "math_dapo", 0, "0"),
    ),
    "MATH-500": (
        {
            "problem": "Find $x$.", "solution": "So \\boxed{\\dfrac{1}{2}}.",
            "answer": "\\dfrac{1}{2}", "subject": "Algebra", "level": 3,
            "unique_id": "test/algebra/1.json",
        },
        ("Find $x$.", "\\frac{1}{2}", "Algebra", 3, "test/algebra/1.json"),
    ),
    "MATH": (
        {
            "problem": "Find $x$.", "level": "Level 5", "type": "Geometry",
            "solution": "First \\boxed{1}, " + "then " * 10 + "\\boxed{\\frac{1}{2}}.",
        },
        ("Find $x$.", "\\frac{1}{2}", "Geometry", 5, "0"),
    ),
    "AIME 2024, capital names": (
        {"ID": "2024-I-1", "Problem": "Find $n$.", "Solution": "Long.", "Answer": 204},
        ("Find $n$.", "204", "file", 0, "2024-I-1"),
    ),
    "AIME 2025": (
        {"problem_idx": 3, "problem": "Find $n$.", "answer": "070"},
        ("Find $n$.", "070", "file", 0, "3"),
    ),
    "AMC 2023": (
        {"id": 0, "question": "Find $n$.", "answer": 27.0, "url": "https://example.org"},
        ("Find $n$.", "27", "file", 0, "0"),
    ),
    "OlympiadBench": (
        {
            "id": 1606, "question": "Find $n$.", "solution": ["Long."], "final_answer": ["$2$"],
            "subfield": "Algebra", "is_multiple_answer": False,
        },
        ("Find $n$.", "2", "Algebra", 0, "1606"),
    ),
    "GSM8K": (
        {"question": "How many?", "answer": "6 * 7 = <<6*7=42>>42\n#### 42"},
        ("How many?", "42", "file", 0, "0"),
    ),
}  # fmt: skip


def written(place, *lines):
    path = place / "set.jsonl"
    path.write_text("\n".join(line if isinstance(line, str) else json.dumps(line)
                              for line in lines))  # fmt: skip
    return path


@pytest.mark.parametrize("name", SETS)
def test_lines_of_a_set_are_read(name, tmp_path):
    line, (question, answer, kind, difficulty, identity) = SETS[name]
    assert read_problems(written(tmp_path, line)) == [
        {"question": question, "answer": answer, "kind": kind, "difficulty": difficulty,
         "id": identity}
    ]  # fmt: skip


def test_several_answers_are_all_asked_for(tmp_path):
    (task,) = read_problems(written(tmp_path, {"question": "q", "final_answer": ["1", "$2$"]}))
    assert task["answer"] == "1, 2"


@pytest.mark.parametrize(
    ("number", "text"), [("0.00002", "0.00002"), ("-1e-7", "-0.0000001"), ("1e22", "1" + "0" * 22)]
)
def test_numbers_have_no_exponents(number, text, tmp_path):
    (task,) = read_problems(written(tmp_path, f'{{"problem": "p", "answer": {number}}}'))
    assert task["answer"] == text


def test_a_question_counts_once(tmp_path):
    one, other = {"problem": "p", "answer": "1"}, {"problem": "q", "answer": 2}
    assert len(read_problems(written(tmp_path, one, other, one))) == 2
    path = written(tmp_path, one, other, one | {"answer": "3"})
    with pytest.warns(RuntimeWarning, match="1 lines repeat a question with another answer"):
        assert [task["answer"] for task in read_problems(path)] == ["1", "2"]


BAD = [
    ('{"problem": "p", "answer": "1"}\n{"problem": ', "line 2: not JSON"),
    ('["p"]', r'line 1: expected a JSON object, not \["p"\]'),
    ({"text": "p", "answer": "1"}, "line 1: no question: one of the fields problem, question"),
    ({"problem": "p"}, "line 1: no answer: one of the fields answer, final_answer"),
    ({"problem": "p", "answer": ""}, "no answer"),
    ({"problem": "p", "answer": None}, "no answer"),
    ({"problem": "p", "answer": True}, "'answer' is an answer, a text or a number, not true"),
    ({"problem": "p", "answer": {"a": 1}}, "'answer' is an answer"),
    ({"problem": "p", "answer": float("nan")}, "'answer' is an answer.*not NaN"),
    ('{"problem": "p", "answer": 1e400}', "'answer' is an answer.*not Infinity"),
    ('{"problem": "p", "answer": ' + "9" * 5000 + "}", "line 1: Exceeds the limit"),
    ({"problem": "p", "answer": "1" * 1001}, "'answer' has 1001 characters; at most 1000"),
    ({"problem": "p", "answer": [["1"]]}, "'answer' is an answer"),
    ({"problem": "p\ud800", "answer": "1"}, "line 1: half a surrogate pair"),
    ('{"problem": "p", "answer": "1"}\r{"problem": "q", "answer": "1"}', "not JSON: Extra data"),
    ('[{"problem": "p", "answer": "1"}]', "expected a JSON object"),
    ({"problem": 3, "answer": "1"}, "'problem' is a text"),
    ({"prompt": [{"role": "system", "content": "s"}], "answer": "1"}, "one is a user's"),
    ({"problem": "p", "solution": "a long solution " * 9}, "no answer"),
    ("[" * 100_000, "nested too deeply|not JSON"),
    ("\ufeff{}", "byte order mark"),
    ("", "is empty; it needs problems"),
]


@pytest.mark.parametrize(("line", "message"), BAD)
def test_what_is_wrong_with_a_line_is_named(line, message, tmp_path):
    with pytest.raises(ValueError, match=message):
        read_problems(written(tmp_path, line))


def test_line_ends_of_windows_and_names_that_come_twice_are_fine(tmp_path):
    path = tmp_path / "set.jsonl"
    lines = [{"id": "1", "problem": name, "answer": "\U0001f600", "level": -3} for name in "pq"]
    path.write_bytes("\r\n\r\n".join(map(json.dumps, lines)).encode() + b"\r\n")
    found = read_problems(path)
    assert [(task["question"], task["answer"]) for task in found] == [
        ("p", "\U0001f600"), ("q", "\U0001f600")
    ]  # fmt: skip
    assert {(task["id"], task["difficulty"]) for task in found} == {("1", 0)}


def test_bytes_that_are_no_text_are_named(tmp_path):
    path = tmp_path / "set.jsonl"
    path.write_bytes(b'{"problem": "p", "answer": "1"}\n\n{"problem": "\xff"}\n')
    with pytest.raises(ValueError, match=r"set\.jsonl, line 3: not UTF-8 at byte 14"):
        read_problems(path)


def test_a_missing_file_is_named(tmp_path):
    with pytest.raises(FileNotFoundError, match=r"absent\.jsonl of problems, one JSON"):
        read_problems(tmp_path / "absent.jsonl")
