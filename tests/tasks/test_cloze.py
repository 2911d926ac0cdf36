"""Questions that a corpus asks of itself: their answers stand where they say, and what they hide is hidden."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trivium.corpus import Document
from trivium.errors import InputError
from trivium.tasks.cloze import cloze_tasks, plain

PAGES = [
    Document("a", "Tall Oak (album)", "Tall Oak is the second album by the band Night Mail from the port of Varn. It is long."),
    Document("b", "Night Mail", "Night Mail was founded by three friends in a cellar beside the old harbour in 1974."),
    Document("c", "Varn", "The port of Varn has a lighthouse, two markets, and ferries that leave for the islands every hour."),
    Document("d", "", "A page without a title says that nobody can be asked to find it, however long its sentences are."),
]


def test_every_question_asks_for_the_page_that_says_it():
    tasks = cloze_tasks(PAGES, 12)
    assert len({task.id for task in tasks}) == 12
    text = {page.id: page.text for page in PAGES}
    for task in tasks:
        said = text[task.truth["gold"][0]]
        kept = [word for word in task.prompt.rstrip("?").split() if word in said]
        assert len(kept) >= 5 and task.prompt.endswith("?") and "d" not in task.truth["gold"]


def test_two_hops_hide_the_name_of_the_second_page():
    linked = [task for task in cloze_tasks(PAGES, 12) if task.truth["hops"] == 2]
    assert len(linked) == 6 and {tuple(task.truth["gold"]) for task in linked} == {("a", "b")}
    for task in linked:
        assert task.truth["answer"] == "Night Mail" not in task.prompt
        assert not task.prompt.startswith("Tall Oak")  # nor does a page's own name stand first


def test_a_pages_own_name_is_no_link():
    """Neither to a namesake nor, by a part of it, to another page."""
    pages = [
        Document("old", "Silent Harbour (film)", "It was shot in nine days with borrowed money and a borrowed boat."),
        Document("new", "Silent Harbour (novel)", "Silent Harbour is a novel that a baker wrote in three weeks of rain."),
        Document("part", "Great Mill", "A mill that grinds no more, but whose wheel is turned for visitors on Sundays."),
        Document(
            "whole", "Great Mill Road", "Great Mill Road is the longest street of the town, with forty lamps and one inn."
        ),
        Document(
            "names", "Inns of the coast", "The oldest of all inns on the coast stands near the Great Mill and sells cider."
        ),
    ]
    linked = {tuple(task.truth["gold"]) for task in cloze_tasks(pages, 40) if task.truth["hops"] == 2}
    assert linked == {("names", "part")}


def test_a_name_that_several_pages_bear_is_no_link_but_an_exact_title_is():
    filler = " is played by a band of four from the north coast every winter."
    pages = [
        Document("song", "Third Eye (song)", "A song that nobody has sung since the winter in which it was written down."),
        Document("band", "Third Eye", "A band of four who never toured and who sold their one van to a baker in spring."),
        Document("film", "Old Mill (film)", "A film in black and white that was shot in nine days with a borrowed camera."),
        Document("play", "Old Mill (play)", "A play in two acts for five voices that was given once and never again after."),
        Document("one", "Winter tunes", "The best known tune by Third Eye" + filler),
        Document("two", "Coast tunes", "The longest tune of the Old Mill" + filler),
    ]
    linked = {tuple(task.truth["gold"]) for task in cloze_tasks(pages, 60) if task.truth["hops"] == 2}
    assert linked == {("one", "band")}


def test_what_cannot_be_hidden_makes_no_link():
    """A name inside the page's own, or inside a longer word; what can be is hidden by whole words."""
    filler = " in the second division of the country with a young team and few fans."
    pages = [
        Document("club", "Real Rovers", "It is the oldest club of the town and has played on the same field since 1902."),
        Document("reserve", "Real Rovers Castilla", "Real Rovers Castilla is the reserve team of Real Rovers" + filler),
        Document("fans", "Fan clubs", "The Real Roversians are those who cheer for the Real Rovers" + filler),
        Document("cup", "Town cup", "The cup was won three times in a row by Real Rovers" + filler),
    ]
    linked = [task for task in cloze_tasks(pages, 40) if task.truth["hops"] == 2]
    assert {tuple(task.truth["gold"]) for task in linked} == {("cup", "club")}
    assert {task.truth["sentence"] for task in linked} == {pages[3].text}


def test_equal_seeds_ask_alike_and_others_do_not():
    assert cloze_tasks(PAGES, 9, seed=3) == cloze_tasks(PAGES, 9, seed=3)
    assert cloze_tasks(PAGES, 9, seed=3) != cloze_tasks(PAGES, 9, seed=4)


@given(st.lists(st.tuples(st.text(max_size=12), st.text(max_size=200)), min_size=1, max_size=6), st.integers(0, 9))
def test_any_corpus_gives_questions_or_says_why_not(pages, count):
    documents = [Document(str(number), title, text) for number, (title, text) in enumerate(pages)]
    try:
        tasks = cloze_tasks(documents, count)
    except InputError as error:
        assert "sentence" in str(error)
        return
    assert len(tasks) == count
    for task in tasks:
        assert len(set(task.truth["gold"])) == task.truth["hops"] and task.prompt.strip()


def test_a_corpus_without_a_fitting_sentence_says_so():
    with pytest.raises(InputError, match="8 to 28 words"):
        cloze_tasks([Document("a", "Varn", "Too short.")], 1)


def test_a_list_of_links_is_no_sentence():
    links = " ".join(f"https://a.example/{number}/{'x' * 60}" for number in range(9))
    pages = [*PAGES, Document("links", "Further reading", f"Further reading stands at {links}.")]
    assert "links" not in {doc for task in cloze_tasks(pages, 60) for doc in task.truth["gold"]}


def test_a_plain_title_is_what_texts_call_it():
    assert plain("Holes (film)") == "Holes" and plain("Varn") == "Varn"
