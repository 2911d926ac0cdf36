"""What a generated world can say: its relations, how documents state them and how questions ask for them.

Documents and questions never share a relation's wording: a filing says `The chief executive of Brennix Holt is Mira
Tolen`, the question says `the person who runs Brennix Holt`. Between them stands the **keyword** (`chief executive`),
which a good query uses: it occurs in every one of `statements`, in none of `loose`, and in no question.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Relation:
    """One function from entities of kind `subject` to entities of kind `object` (or to a "year").

    `statements` and `loose` are sentences over `{s}` and `{o}`; `questions` ask for the object of `{x}`, `phrases`
    describe it inside a longer question, as in "In which city was {the person who runs Brennix Holt} born?".
    `filing` says whether the company's 10-K states it, rather than a web page.
    """

    key: str
    subject: str
    object: str
    keyword: str
    statements: tuple[str, ...]
    loose: tuple[str, ...]
    questions: tuple[str, ...]
    phrases: tuple[str, ...]
    filing: bool = False


RELATIONS: tuple[Relation, ...] = (
    # companies: what a filing states
    Relation(
        "ceo",
        "company",
        "person",
        "chief executive",
        ("The chief executive of {s} is {o}.", "{s} named {o} its chief executive.", "{o} is chief executive of {s}."),
        ("{s} is led by {o}.", "{o} leads {s} day to day."),
        ("Who runs {x}?", "Who is in charge at {x}?", "Which person manages {x}?"),
        ("the person who runs {x}", "whoever is in charge at {x}", "the head of {x}"),
        filing=True,
    ),
    Relation(
        "headquarters",
        "company",
        "city",
        "headquarters",
        (
            "The headquarters of {s} are in {o}.",
            "{s} has its headquarters in {o}.",
            "From its headquarters in {o}, {s} reports.",
        ),
        ("{s} is based in {o}.", "The main office of {s} stands in {o}."),
        ("From which city does {x} operate?", "Where is {x} located?", "In which city does {x} have its seat?"),
        ("the city from which {x} operates", "the place where {x} is located", "the city that houses {x}"),
        filing=True,
    ),
    Relation(
        "auditor",
        "company",
        "company",
        "auditor",
        ("The auditor of {s} is {o}.", "{s} appointed {o} as auditor.", "{o} remains the auditor of {s}."),
        ("The accounts of {s} were signed off by {o}.", "{o} audits {s}."),
        (
            "Which firm checks the books of {x}?",
            "Who examines the finances of {x}?",
            "Which company reviews the ledgers of {x}?",
        ),
        (
            "the firm that checks the books of {x}",
            "the company that examines the finances of {x}",
            "the firm reviewing the ledgers of {x}",
        ),
        filing=True,
    ),
    Relation(
        "supplier",
        "company",
        "company",
        "supplier",
        ("The main supplier of {s} is {o}.", "{s} relies on {o} as sole supplier.", "{o} is a key supplier to {s}."),
        ("{s} buys its parts from {o}.", "{o} delivers most goods to {s}."),
        ("Which company provides parts to {x}?", "Where does {x} get its components?", "Which firm sells materials to {x}?"),
        ("the company that provides parts to {x}", "the firm that sells materials to {x}", "the source of components for {x}"),
        filing=True,
    ),
    Relation(
        "chair",
        "company",
        "person",
        "board chair",
        ("The board chair of {s} is {o}.", "{o} serves as board chair of {s}.", "{s} elected {o} as board chair."),
        ("{o} presides over the directors of {s}.",),
        ("Who heads the directors of {x}?", "Who leads the supervisors of {x}?"),
        ("the person who heads the directors of {x}", "the leader of the supervisors of {x}"),
        filing=True,
    ),
    Relation(
        "lender",
        "company",
        "company",
        "lender",
        ("The largest lender to {s} is {o}.", "{s} owes most to its lender {o}.", "{o} is the lender of {s}."),
        ("The loans of {s} come from {o}.", "{o} granted {s} its credit line."),
        ("Which firm finances {x}?", "Who gave money on credit to {x}?", "To which company is {x} in debt?"),
        ("the firm that finances {x}", "the company to which {x} is in debt"),
        filing=True,
    ),
    # companies: what a web page states
    Relation(
        "founder",
        "company",
        "person",
        "founder",
        ("The founder of {s} is {o}.", "{o} is known as the founder of {s}.", "{s} still honours its founder {o}."),
        ("{s} was started by {o}.", "{o} set up {s}."),
        ("Who established {x}?", "Who created {x}?", "Which person launched {x}?"),
        ("the person who established {x}", "the creator of {x}", "the entrepreneur who launched {x}"),
    ),
    Relation(
        "flagship",
        "company",
        "product",
        "flagship product",
        (
            "The flagship product of {s} is the {o}.",
            "{s} sells the {o} as its flagship product.",
            "The {o} is the flagship product of {s}.",
        ),
        ("{s} is best known for the {o}.",),
        ("What does {x} mainly sell?", "Which device made {x} famous?", "What is the bestseller of {x}?"),
        ("the device that made {x} famous", "the bestseller of {x}", "the main offering of {x}"),
    ),
    Relation(
        "founded",
        "company",
        "year",
        "founding year",
        ("The founding year of {s} is {o}.", "{s} gives {o} as its founding year."),
        ("{s} opened its doors in {o}.",),
        ("When was {x} established?", "In what year did {x} begin?", "How long ago was {x} created?"),
        (),
    ),
    # products
    Relation(
        "maker",
        "product",
        "company",
        "maker",
        ("The maker of the {s} is {o}.", "{o} is the maker of the {s}.", "The {s} carries its maker's name, {o}."),
        ("The {s} is built by {o}.", "The {s} comes from {o}."),
        ("Which company manufactures the {x}?", "Which firm is behind the {x}?", "Who produces the {x}?"),
        ("the company that manufactures the {x}", "the firm behind the {x}", "the producer of the {x}"),
    ),
    Relation(
        "designer",
        "product",
        "person",
        "designer",
        ("The designer of the {s} is {o}.", "{o} was the designer of the {s}.", "The {s} won its designer {o} fame."),
        ("The {s} was drawn by {o}.", "The look of the {s} is due to {o}."),
        ("Who came up with the {x}?", "Who invented the {x}?", "Who devised the {x}?"),
        ("the person who came up with the {x}", "the inventor of the {x}", "the person who devised the {x}"),
    ),
    Relation(
        "factory",
        "product",
        "city",
        "factory",
        ("The factory of the {s} stands in {o}.", "The {s} leaves a factory in {o}.", "A factory in {o} builds the {s}."),
        ("The {s} is assembled in {o}.",),
        ("Where is the {x} produced?", "In which city is the {x} put together?", "From which town is the {x} shipped?"),
        ("the city where the {x} is produced", "the town in which the {x} is put together"),
    ),
    Relation(
        "launched",
        "product",
        "year",
        "launch year",
        ("The launch year of the {s} is {o}.", "The {s} had its launch year in {o}."),
        ("The {s} first went on sale in {o}.",),
        ("When did the {x} come out?", "In what year was the {x} introduced?"),
        (),
    ),
    # people
    Relation(
        "born",
        "person",
        "city",
        "born",
        ("{s} was born in {o}.", "{s}, born in {o}, is well known.", "Few know that {s} was born in {o}."),
        ("{s} is a native of {o}.", "{s} is a child of {o}."),
        ("What is the birthplace of {x}?", "Where did {x} come into the world?", "Which city does {x} originally come from?"),
        ("the birthplace of {x}", "the city where {x} came into the world", "the place {x} originally comes from"),
    ),
    Relation(
        "studied",
        "person",
        "school",
        "studied",
        ("{s} studied at {o}.", "{s} studied law at {o}.", "For four years {s} studied at {o}."),
        ("{s} holds a degree from {o}.", "{s} is a graduate of {o}."),
        ("Which university did {x} attend?", "Where was {x} educated?", "What is the alma mater of {x}?"),
        ("the university that {x} attended", "the alma mater of {x}", "the place where {x} was educated"),
    ),
    Relation(
        "spouse",
        "person",
        "person",
        "married",
        ("{s} is married to {o}.", "{s} married {o} years ago.", "{s}, married to {o}, has two children."),
        ("{o} is the spouse of {s}.", "The wedding of {s} and {o} was small."),
        ("Who is the partner of {x}?", "To whom did {x} say yes?", "With whom does {x} share a life?"),
        ("the partner of {x}", "the husband or wife of {x}"),
    ),
    Relation(
        "career",
        "person",
        "company",
        "career",
        ("{s} began a career at {o}.", "The career of {s} started at {o}.", "{s} owes a first career to {o}."),
        ("The first job of {s} was with {o}.",),
        ("Which company first employed {x}?", "Where did {x} work first?", "Which firm hired {x} initially?"),
        ("the company that first employed {x}", "the firm that hired {x} initially"),
    ),
    Relation(
        "mentor",
        "person",
        "person",
        "mentor",
        ("The mentor of {s} was {o}.", "{s} calls {o} a mentor.", "{o} was mentor to {s}."),
        ("{s} learned the trade from {o}.", "{s} was guided by {o}."),
        ("Who taught {x}?", "Who trained {x}?", "Who was the teacher of {x}?"),
        ("the person who taught {x}", "the teacher of {x}", "the person who trained {x}"),
    ),
    Relation(
        "prize",
        "person",
        "prize",
        "awarded",
        ("{s} was awarded the {o}.", "The jury awarded {s} the {o}.", "{s} is proud to be awarded the {o}."),
        ("{s} won the {o}.", "The {o} went to {s}."),
        ("Which honour did {x} receive?", "What distinction does {x} hold?", "With what was {x} honoured?"),
        ("the honour that {x} received", "the distinction that {x} holds"),
    ),
    Relation(
        "home",
        "person",
        "city",
        "lives",
        ("{s} lives in {o}.", "{s} now lives in {o}.", "{s} lives on a farm near {o}."),
        ("The home of {s} is in {o}.", "{s} has settled in {o}."),
        ("Where does {x} reside today?", "Which city does {x} call home?", "In what city is the house of {x}?"),
        ("the city where {x} resides today", "the city that {x} calls home"),
    ),
    # cities
    Relation(
        "river",
        "city",
        "river",
        "river",
        ("The river through {s} is the {o}.", "{s} lies on the river {o}.", "The river {o} divides {s}."),
        ("{s} stands on the {o}.", "The {o} flows through {s}."),
        ("Which stream crosses {x}?", "What water does {x} lie at?", "Which waterway passes {x}?"),
        ("the stream that crosses {x}", "the waterway that passes {x}", "the water {x} lies at"),
    ),
    Relation(
        "mayor",
        "city",
        "person",
        "mayor",
        ("The mayor of {s} is {o}.", "{o} was elected mayor of {s}.", "{s} has {o} as mayor."),
        ("{s} is governed by {o}.", "The town hall of {s} answers to {o}."),
        ("Who leads the council of {x}?", "Which politician heads {x}?", "Who is the top official of {x}?"),
        ("the politician who heads {x}", "the top official of {x}", "the leader of the council of {x}"),
    ),
    Relation(
        "twin",
        "city",
        "city",
        "twin city",
        ("The twin city of {s} is {o}.", "{s} has {o} as its twin city.", "{o} became the twin city of {s}."),
        ("{s} is linked with {o} by treaty.",),
        ("Which town is a partner of {x}?", "With which place is {x} paired?", "What is the sister town of {x}?"),
        ("the sister town of {x}", "the partner town of {x}", "the place with which {x} is paired"),
    ),
    Relation(
        "employer",
        "city",
        "company",
        "largest employer",
        ("The largest employer in {s} is {o}.", "{o} is the largest employer of {s}.", "{s} has {o} as largest employer."),
        ("Most people in {s} work for {o}.",),
        ("Which company gives the most jobs in {x}?", "For which firm do many in {x} work?"),
        ("the company that gives the most jobs in {x}", "the firm with the most workers in {x}"),
    ),
    # schools, rivers, prizes
    Relation(
        "rector",
        "school",
        "person",
        "rector",
        ("The rector of {s} is {o}.", "{o} was sworn in as rector of {s}.", "{s} chose {o} as rector."),
        ("{s} is headed by {o}.",),
        ("Who directs {x}?", "Who is the principal of {x}?", "Who presides over {x}?"),
        ("the person who directs {x}", "the principal of {x}"),
    ),
    Relation(
        "campus",
        "school",
        "city",
        "campus",
        ("The campus of {s} is in {o}.", "{s} has its campus in {o}.", "Students reach the campus of {s} from {o}."),
        ("{s} teaches in {o}.",),
        ("Where do the students of {x} gather?", "Where can one find {x}?", "Which town is home to {x}?"),
        ("the city where one can find {x}", "the town that is home to {x}"),
    ),
    Relation(
        "mouth",
        "river",
        "city",
        "mouth",
        ("The mouth of the {s} is near {o}.", "The {s} has its mouth at {o}.", "At its mouth the {s} passes {o}."),
        ("The {s} meets the sea at {o}.",),
        ("Where does the {x} end?", "At which city does the {x} reach the coast?"),
        ("the city where the {x} ends", "the city at which the {x} reaches the coast"),
    ),
    Relation(
        "sponsor",
        "prize",
        "company",
        "sponsor",
        ("The sponsor of the {s} is {o}.", "{o} is sponsor of the {s}.", "The {s} has {o} as its sponsor."),
        ("The {s} is paid for by {o}.",),
        ("Which company funds the {x}?", "Who pays for the {x}?", "Which firm puts up the money for the {x}?"),
        ("the company that funds the {x}", "the firm that pays for the {x}"),
    ),
    Relation(
        "ceremony",
        "prize",
        "city",
        "ceremony",
        (
            "The ceremony of the {s} is held in {o}.",
            "{o} hosts the ceremony of the {s}.",
            "Guests come to {o} for the {s} ceremony.",
        ),
        ("The {s} is handed over in {o}.",),
        ("Where is the {x} presented?", "In which city is the {x} given out?"),
        ("the city where the {x} is presented", "the city in which the {x} is given out"),
    ),
)

BY_KEY = {relation.key: relation for relation in RELATIONS}
"""The relations by key."""

FORMER: dict[str, str] = {
    "ceo": "{o} was formerly chief executive of {s}.",
    "headquarters": "{s} moved its headquarters away from {o}.",
    "auditor": "{s} dismissed its former auditor {o}.",
    "supplier": "{o} is no longer a supplier to {s}.",
    "chair": "{o} stepped down as board chair of {s}.",
    "lender": "{s} has repaid its former lender {o}.",
    "maker": "{o} was once the maker of the {s}.",
    "factory": "The {s} factory in {o} was closed.",
    "home": "{s} no longer lives in {o}.",
    "mayor": "{o} is a former mayor of {s}.",
    "twin": "{s} lost its twin city {o}.",
    "employer": "{o} is no longer the largest employer in {s}.",
    "rector": "{o} was rector of {s} long ago.",
    "campus": "{s} gave up its campus in {o}.",
    "sponsor": "{o} withdrew as sponsor of the {s}.",
}
"""What once was true, by relation: sentences with the keyword that answer no question, so that a reader must read."""
