"""Words for prompts: common ones; most tokenizers have one token for each of them with the space before it."""

from __future__ import annotations

_TEXT = """
about above across after again air all along also always animal another answer any around ask away back be
because been before began being below best between big bird black blue boat body book both box boy bring
brother brown build but buy call came can car care carry cat change child city clean close cold color come
could country cut dark day deep did different do dog done door down draw drive dry each early earth east eat
end even ever every eye face fall family far farm fast father feel feet few field find fire first fish five
fly follow food for form found four free friend from front full game garden gave get girl give go gold good
great green grow had half hand happen hard has have head hear heart help here high hill his hold home horse
hot hour house how hundred idea if in inside island just keep kind king knew know land large last late laugh
learn leave left less let letter life light like line list listen little live long look lost love low made
make man many map mark may mean men might mile milk mind minute money moon more morning most mother mountain
move much music must name near need never new next night no north not note nothing now number of off often old
on once one only open or order other our out over own page paper part pass people place plan plant play point
power problem pull put question quick rain ran read ready real red rest right river road rock room round rule
run said same sand saw say school sea second see seem sentence set seven several ship short should show side
simple since sing sit six sleep slow small snow so some song soon sound south stand star start state stay step
still stone stop story street strong such summer sun sure table take talk teach tell ten than that the their
them then there these they thing think this those thought three through time to today together told too took
top town tree true try turn two under until up use very voice wait walk wall want war warm was watch water way
we week well went were west what wheel when where which while white who whole why wide will wind window winter
with without woman wonder wood word work world would write year yellow yes yet you young
"""

WORDS = tuple(_TEXT.split())
